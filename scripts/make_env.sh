#!/usr/bin/env bash
# Makes or updates the environment from the locks: `make env` runs this when a lock changed.
#   make_env.sh             the environment
#   make_env.sh lock        resolves requirements*.in into the locks
#   make_env.sh sagemaker   SageMaker's inference toolkit and model server, on top of the environment but outside of it,
#                           in LENGTHWISE_CACHE; prints the folder
#   PYTHON                  the Python 3.11 to use, where it is not found by itself
#   VENV                    where the environment goes (default .venv)
#   LENGTHWISE_TORCH_INDEX  a package index with the build of torch to install; by default pip's own settings decide
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
torch=$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements.in)
uv=$(sed -n 's/^\(uv==[^ ]*\).*/\1/p' requirements-dev.in)

say() { printf 'env: %s\n' "$*"; }

usable() { # whether $1 is a CPython 3.11 that can make an environment
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 /usr/local/bin/python3.11 /usr/bin/python3.11 python3 python; do
        if usable "$candidate"; then
            printf '%s\n' "$candidate"
            return
        elif [[ $candidate == "${PYTHON:-}" ]]; then
            break # the one that was named is the one to use, or none
        fi
    done
    {
        [[ -z ${PYTHON:-} ]] || say "$PYTHON is not a Python 3.11 with the modules venv and ensurepip."
        say "Python 3.11 is needed, and was not found: optimum-neuron, which compiles for AWS Neuron, refuses 3.12."
        say "Install it, or name it: make env PYTHON=/path/to/python3.11"
        say "(on Debian and Ubuntu the module ensurepip is in the package python3.11-venv)"
    } >&2
    return 1
}

pip_setting() { # pip's setting $1, from its files or the environment; empty when there is none
    "$venv/bin/python" -m pip config get ":env:.$1" 2>/dev/null ||
        "$venv/bin/python" -m pip config get "global.$1" 2>/dev/null || true
}

words() { tr -s '[:space:]' "${1:- }" | sed "s/^${1:- }//; s/${1:- }\$//"; }

uv_like_pip() { # uv has settings of its own: give it pip's, where the user set none for uv
    local index extra links cert timeout
    index=$(pip_setting index-url) extra=$(pip_setting extra-index-url) links=$(pip_setting find-links)
    cert=$(pip_setting cert) timeout=$(pip_setting default-timeout)
    [[ -z $index ]] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
    [[ -z $extra ]] || export UV_INDEX=${UV_INDEX:-$(words <<<"$extra")}
    [[ -z $links ]] || export UV_FIND_LINKS=${UV_FIND_LINKS:-$(words , <<<"$links")}
    [[ -z $cert ]] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$cert}
    [[ -z $timeout ]] || export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-$timeout}
    # Every file is checked against its hash in the lock, so it does not matter which index has it.
    export UV_INDEX_STRATEGY=${UV_INDEX_STRATEGY:-unsafe-best-match}
}

install_locked() {
    local locks=(-r requirements.lock -r requirements-data.lock)
    if ! "$venv/bin/uv" pip install --python "$venv/bin/python" --quiet --compile-bytecode \
        --no-deps --require-hashes "${locks[@]}"; then
        say "uv could not install the lock with pip's settings; pip itself tries (slower)"
        "$venv/bin/python" -m pip install --quiet --no-deps --require-hashes "${locks[@]}"
    fi
}

install_torch() {
    local from=(${LENGTHWISE_TORCH_INDEX:+--index-url "$LENGTHWISE_TORCH_INDEX"})
    "$venv/bin/python" -m pip install --quiet --no-deps "${from[@]}" "$torch"
    if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
        say "this build of torch needs its CUDA libraries: installing them (some GB; an index with CPU builds,"
        say "named by LENGTHWISE_TORCH_INDEX, would save them)"
        "$venv/bin/python" -m pip install --quiet --upgrade-strategy only-if-needed "${from[@]}" "$torch"
        "$venv/bin/python" -c 'import torch'
    fi
}

lock() { # resolve anew, keeping the pins that still fit
    local index=(${LENGTHWISE_TORCH_INDEX:+--index "$LENGTHWISE_TORCH_INDEX"})
    local options=(--python-version 3.11 --generate-hashes --no-emit-package torch --no-annotate --no-header --quiet)
    local new=.lock.new
    cp requirements.lock "$new"
    "$venv/bin/uv" pip compile "${options[@]}" "${index[@]}" requirements.in requirements-dev.in -o "$new" >/dev/null
    if grep -q '^nvidia-' "$new"; then
        rm "$new"
        say "a CUDA build of torch was found: name an index with CPU builds in LENGTHWISE_TORCH_INDEX" >&2
        return 1
    fi
    mv "$new" requirements.lock
    local name
    for name in data sagemaker; do
        "$venv/bin/uv" pip compile "${options[@]}" --no-deps "requirements-$name.in" -o "requirements-$name.lock" >/dev/null
    done
    say "locked $(cat requirements*.lock | grep -c '==') packages"
}

serving_env() { # the folder of the serving environment of this environment and its lock
    local base key
    base=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    key=$(cat requirements-sagemaker.lock - <<<"$base" | sha256sum | cut -c1-12)
    printf '%s\n' "${LENGTHWISE_CACHE:-$HOME/.cache/lengthwise}/sagemaker-$key"
}

make_serving_env() { # its packages need others than ours (and audio libraries): the lock has what serving texts takes
    local at=$1 new=$1.new base
    base=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    rm -rf "$new"
    "$venv/bin/python" -m venv --without-pip "$new"
    # A path alone: what is linked into the environment, such as Lengthwise itself, is not there.
    printf '%s\n' "$base" >"$new/lib/python3.11/site-packages/environment.pth"
    if ! "$venv/bin/uv" pip install --python "$new/bin/python" --quiet --no-deps --require-hashes \
        -r requirements-sagemaker.lock; then
        say "uv could not install the lock with pip's settings; pip itself tries" >&2
        "$venv/bin/python" -m pip --python "$new/bin/python" install --quiet --no-deps --require-hashes \
            -r requirements-sagemaker.lock
    fi
    mv "$new" "$at"
}

if [[ ${1:-} == sagemaker ]]; then
    at=$(serving_env)
    mkdir -p "$(dirname "$at")"
    exec 9>"$at.lock"
    flock 9
    if [[ ! -d $at ]]; then
        uv_like_pip
        make_serving_env "$at" >&2
    fi
    printf '%s\n' "$at"
    exit
fi

started=$SECONDS
if ! usable "$venv/bin/python"; then
    python=$(find_python)
    say "a new environment in $venv, with $("$python" --version)"
    "$python" -m venv --clear "$venv"
fi
"$venv/bin/python" -m pip install --quiet "$uv"
uv_like_pip
if [[ ${1:-} == lock ]]; then
    lock
    exit
fi
say "installing the locked packages"
install_locked
install_torch
"$venv/bin/python" -m pip install --quiet --no-deps --no-build-isolation --editable .
touch "$venv/.ready"
say "ready in $((SECONDS - started)) s"
