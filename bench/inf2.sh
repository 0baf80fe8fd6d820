#!/usr/bin/env bash
# Measures the target neuron on this host, unattended, and writes one JSON file to send back: see docs/inf2.md.
#   PYTHON        the Python of the environment with Lengthwise and the Neuron SDK (default: that of .venv, else python3)
#   INF2_OUT      folder of the result, of its log and of the cache of artifacts (default inf2-measurement)
#   INF2_MODELS   which of distilbert-base,roberta-base,bert-base,bert-large (default all)
#   INF2_ROWS     rows per model (default 200000)
#   INF2_LENGTH   tokens per row (default 128, as AWS's figures)
#   INF2_REVIEWS  rows of a night of real reviews (default 20000; 0 leaves it out; needs requirements-data.lock)
#   INF2_TINY     set: models of two small layers, to try the procedure
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)}
out=${INF2_OUT:-inf2-measurement}
mkdir -p "$out"
out=$(cd "$out" && pwd)
export LENGTHWISE_CACHE=$out/cache PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
{
    date -u +"begun %FT%TZ"
    status=0
    "$python" -m bench.inf2 "$out/inf2.json" || status=$?
    date -u +"ended %FT%TZ with $status"
    exit "$status"
} 2>&1 | tee "$out/inf2.log"
