"""The test double of the Neuron SDK in child processes, or in this one for a while and then gone without a trace."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

DOUBLE = Path(__file__).parent / "neuron_double"
INF2 = "inf2.xlarge:1"
"""One device with two cores."""
_PACKAGES = (
    "optimum", "torch_neuronx", "neuronxcc", "libneuronxla", "torch_xla", "neuronx_distributed",
    "sdk_double", "graph_operations", "simulated_host", "decoder_operations",
)  # fmt: skip
"""Of the double, and what decides at its import whether there is an SDK."""


def double_environment(host: str | None = INF2, **settings: str | Path) -> dict[str, str]:
    """Variables for a child process: the double on its path, and NEURON_DOUBLE_<NAME> for each setting in capitals."""
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(DOUBLE)]
    variables = {f"NEURON_DOUBLE_{name.upper()}": str(value) for name, value in settings.items()}
    return {
        "PYTHONPATH": os.pathsep.join([str(DOUBLE), *given]),
        "PATH": os.pathsep.join([str(DOUBLE / "bin"), os.environ.get("PATH", "")]),
        "HF_HUB_OFFLINE": "1",
        "NEURON_DOUBLE_HOST": host or "",
        **variables,
    }


def at_start_of_python(folder: Path, *code: str) -> dict[str, str]:
    """Variables for a process that, and whose children, run these lines when Python starts, before any of their own."""
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text("\n".join([*code, ""]))
    given = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *([given] if given else [])])}


def double_for_job(folder: Path, job_file: Path) -> dict[str, str]:
    """Variables for a server that starts the steps of many jobs: those of this job alone have the double, on INF2.

    The double writes its log to `folder`/log and keeps the cores in `folder`/cores.
    """
    (folder / "cores").mkdir(parents=True)
    variables = double_environment(log=folder / "log", cores=folder / "cores")
    return at_start_of_python(
        folder / "start",
        "import os, sys",
        f"if {str(job_file)!r} in sys.orig_argv:",
        f"    os.environ.update({variables!r})",
        f"    sys.path.insert(0, {str(DOUBLE)!r})",
    )


@contextmanager
def neuron_double(host: str | None = INF2, **settings: str | Path) -> Iterator[None]:
    """The double in this process and its children; afterwards modules, path and environment are what they were."""
    environment, path = dict(os.environ), list(sys.path)
    before = _taken_modules()
    os.environ.update(double_environment(host, **settings))
    sys.path.insert(0, str(DOUBLE))
    try:
        yield
    finally:
        _taken_modules()
        sys.modules.update(before)
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)


@contextmanager
def exports_in_process() -> Iterator[None]:
    """The target's exports run here instead of in processes of their own, each of which imports torch for seconds.

    For suites with dozens of exports; what the process adds is tested in test_neuron_compiler.py.
    """
    from compile.targets import neuron
    from compile.targets.neuron_export import export

    def run_here(module: str, request: dict[str, Any], out_dir: Path, title: str, timeout_s: float) -> None:
        export(**request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neuron, "run_export", run_here)
        yield


def events(log: Path, event: str | None = None) -> list[dict[str, Any]]:
    """What the double was asked for, in order: lines of NEURON_DOUBLE_LOG."""
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [line for line in lines if event in (None, line["event"])]


def _taken_modules() -> dict[str, Any]:
    """Remove and return the modules that look at the SDK or are it."""
    names = [name for name in sys.modules if name.split(".")[0] in _PACKAGES]
    return {name: sys.modules.pop(name) for name in names}
