"""What this machine can run: cores and who has them, targets with their versions, and why a target is unavailable."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path
from typing import Any

from compile.targets import AnyTarget, load_target, without_device
from compile.targets.decoders import load_decoder_target
from compile.toolchains import DECODERS, target_modules
from pipeline.context import default_cache_dir
from pipeline.cores import KINDS, Kind, available_cores
from pipeline.errors import JobError, WorkerError
from pipeline.leases import leases
from pipeline.locks import lock_dir
from pipeline.neuron_devices import NeuronDevice, list_devices, neuron_tool, usable_cores
from pipeline.version_matrix import matrix


def examine() -> dict[str, Any]:
    """What there is: {machine, neuron, leases, targets, decoders, stacks}.

    targets, and decoders, which are those of task generate: [{name, unavailable, precisions, default_precision,
    versions, machine, compile_only, double}], where `compile_only` says why a target that compiles here cannot run
    here, and `double` that its SDK is the tests' stand-in; neuron: see `_neuron`; leases: see `_leases`; stacks: the
    table of pipeline.version_matrix.
    """
    return {
        "machine": _machine(),
        "neuron": _neuron(),
        "leases": [lease for kind in KINDS for lease in _leases(kind)],
        "targets": [_target(load_target(name)) for name in target_modules()],
        "decoders": [_target(load_decoder_target(name, new_tokens=1)) for name in DECODERS],
        "stacks": matrix(),
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


def _neuron() -> dict[str, Any]:
    """{devices: [{device, cores, memory_bytes, connected_to, processes}], usable_cores, unavailable, monitor}."""
    devices: list[NeuronDevice] = []
    usable: list[int] = []
    unavailable = None
    try:
        devices = list_devices()
        usable = usable_cores([core for device in devices for core in device.cores])
    except (JobError, WorkerError) as error:
        unavailable = str(error)
    return {
        "unavailable": unavailable,
        "usable_cores": usable,
        "monitor": neuron_tool("neuron-monitor"),
        "devices": [
            {
                "device": device.index,
                "cores": list(device.cores),
                "memory_bytes": device.memory_bytes,
                "connected_to": list(device.connected_to),
                "processes": [{"pid": pid, "command": command} for pid, command in device.processes],
            }
            for device in devices
        ],
    }


def _leases(kind: Kind) -> list[dict[str, Any]]:
    """{kind, cores, job, pid, seconds} of each holder, then of each that waits, without cores."""
    try:
        holding, waiting = leases(kind)
    except OSError:  # a folder that cannot be written to: the machine's part says so
        return []
    at = time.monotonic()
    found = [(list(holder.cores), holder.job, holder.pid, holder.since) for holder in holding]
    found += [([], worker.job, worker.pid, worker.arrived) for worker in waiting]
    return [
        {"kind": kind, "cores": cores, "job": job, "pid": pid, "seconds": round(at - since, 3)}
        for cores, job, pid, since in found
    ]


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
