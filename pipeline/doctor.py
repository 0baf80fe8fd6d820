"""What this machine can run: cores, targets of each task with their versions, and why a target is unavailable."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from compile.targets import AnyTarget, load_target
from compile.targets.decoders import load_decoder_target
from compile.toolchains import DECODERS, target_modules
from pipeline.context import default_cache_dir
from pipeline.cores import available_cores, lock_dir


def examine() -> dict[str, Any]:
    """{machine: {...}, targets and decoders: [{name, unavailable, precisions, default_precision, versions, machine}]}.

    `decoders` are the targets of task generate.
    """
    return {
        "machine": _machine(),
        "targets": [_target(load_target(name)) for name in target_modules()],
        "decoders": [_target(load_decoder_target(name, new_tokens=1)) for name in DECODERS],
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


def _target(target: AnyTarget[Any]) -> dict[str, Any]:
    reason = target.unavailable()
    if reason:
        return {"name": target.name, "unavailable": reason, "precisions": [], "versions": {}}
    return {
        "name": target.name,
        "unavailable": None,
        "precisions": [precision for precision in target.precisions if target.supports(precision) is None],
        "default_precision": target.default_precision(),
        "versions": target.versions(),
        "machine": target.machine(),
    }


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed as a package"


def _writable(path: Path) -> str:
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    return f"{path} ({'writable' if os.access(existing, os.W_OK) else 'NOT writable'})"
