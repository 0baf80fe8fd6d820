"""What this machine can run: cores, targets with their versions, and why a target is unavailable."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from compile.targets import load_target, without_device
from compile.toolchains import target_modules
from pipeline.context import default_cache_dir
from pipeline.cores import available_cores, lock_dir
from pipeline.version_matrix import matrix


def examine() -> dict[str, Any]:
    """{machine: {...}, targets: [{name, unavailable, precisions, versions, machine, compile_only, double}], neuron}.

    `compile_only` says why a target that compiles here cannot run here; `double`, that its SDK is the tests' stand-in;
    `neuron` is the table of pipeline.version_matrix.
    """
    return {
        "machine": _machine(),
        "targets": [_target(name) for name in target_modules()],
        "neuron": matrix(),
    }


def _machine() -> dict[str, str]:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "AWS"
    return {
        "lengthwise": _version("lengthwise"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": ", ".join(map(str, available_cores())),
        "cache": _writable(default_cache_dir()),
        "locks": _writable(lock_dir()),
        "S3 endpoint": endpoint,
    }


def _target(name: str) -> dict[str, Any]:
    target = load_target(name)
    reason = target.unavailable()
    if reason:
        return {"name": name, "unavailable": reason, "precisions": [], "versions": {}}
    return {
        "name": name,
        "unavailable": None,
        "precisions": [precision for precision in target.precisions if target.supports(precision) is None],
        "default_precision": target.default_precision(),
        "versions": target.versions(),
        "machine": target.machine(),
        "compile_only": without_device(target),
        "double": any("testdouble" in version for version in target.versions().values()),
    }


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed as a package"


def _writable(path: Path) -> str:
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    return f"{path} ({'writable' if os.access(existing, os.W_OK) else 'NOT writable'})"
