"""The process that exports for Neuron: what its end is told as, and that nothing of it stays behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from neuron_tools import DOUBLE, events, neuron_double

from compile.compilations import compilations
from compile.errors import CompileError
from compile.shapes import Shape
from compile.targets import load_target
from compile.targets.neuron_compiler import LOG, run_export

SHAPE = Shape(length=16, batch=4)
COMPILER = (
    f"import subprocess; compiler = {str(DOUBLE / 'bin' / 'neuronx-cc')!r}\n"
    "status = subprocess.run([sys.executable, compiler, 'compile', '4x16'])\n"
    "raise RuntimeError(f'neuronx-cc failed with {status.returncode}')\n"
)
"""What torch_neuronx.trace does, without the seconds of its import."""
PROGRAM = "from compile.targets.neuron_compiler import begin_export; import os, sys; r = begin_export(sys.argv[1]); "


@pytest.fixture(scope="module", autouse=True)
def _sdk_double() -> Iterator[None]:
    with neuron_double():
        yield


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEURON_DOUBLE_LOG", str(tmp_path / "double.jsonl"))
    return tmp_path / "double.jsonl"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that a test writes its export into; it imports nothing heavy."""
    given = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), given]))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / "written_export.py"


def written(module: Path, body: str, timeout_s: float = 60.0) -> Path:
    """Run an export that does `body`."""
    module.write_text(PROGRAM + "\n" + body)
    run_export(module.stem, {"answer": 42}, module.parent, "neuron: 4x16 bf16", timeout_s)
    return module.parent / LOG


def test_a_shape_compiles_in_a_process_of_its_own_and_its_log_is_kept(
    tiny_model: Path, tmp_path: Path, log: Path
) -> None:
    before = compilations()
    load_target("neuron").compile(tiny_model, SHAPE, "bf16", tmp_path)
    assert compilations() == before + 1
    (compiled,) = events(log, "compile")
    assert compiled["pid"] != os.getpid()
    kept = (tmp_path / LOG).read_text()
    assert "this SDK is the double of the tests, not AWS's" in kept
    assert "neuronx-cc 2.21" in kept
    assert "Using Neuron: --auto-cast matmul" in kept


def test_a_compiler_that_the_kernel_kills(
    tiny_model: Path, tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole export: torch_neuronx runs the compiler as a process, and tells how it ended."""
    monkeypatch.setenv("NEURON_DOUBLE_COMPILE", "kill@4x16")
    with pytest.raises(
        CompileError, match=r"(?s)^neuron: 4x16 bf16 was .*signal 9\), most likely for want of memory.*-9"
    ):
        load_target("neuron").compile(tiny_model, SHAPE, "bf16", tmp_path)
    assert events(log, "neuronx-cc")[0]["fault"] == "kill"


def test_a_compiler_that_fails(module: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_DOUBLE_COMPILE", "fail")
    with pytest.raises(CompileError, match=r"(?s)failed \(exit code 1\).*NCC_EVRF001.*neuronx-cc failed with 70"):
        written(module, COMPILER)


def test_a_hanging_compiler_is_given_up_and_ended(module: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline passes as soon as the compiler hangs: its clock is the only thing that the test sets."""
    monkeypatch.setenv("NEURON_DOUBLE_COMPILE", "hang")
    real, waits = subprocess.Popen.wait, []

    def wait(process: subprocess.Popen, timeout: float | None = None) -> int:
        if timeout is None or waits:
            return real(process, timeout)
        waits.append(timeout)
        while not events(log, "neuronx-cc"):
            assert process.poll() is None, (module.parent / LOG).read_text()
            os.sched_yield()
        return real(process, 0.01)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(CompileError, match=r"within 30 minutes and was given up; raise neuron.compile_timeout_minutes"):
        written(module, COMPILER, timeout_s=1800)
    assert waits == [1800]
    _await_end(events(log, "neuronx-cc")[0]["pid"])


def test_an_export_that_is_killed_itself(module: Path) -> None:
    with pytest.raises(CompileError, match=r"killed \(signal 9\), most likely for want of memory"):
        written(module, "os.kill(os.getpid(), 9)")


def test_an_export_that_crashes_or_fails_keeps_its_log(module: Path) -> None:
    with pytest.raises(CompileError, match=r"the export ended with signal 6") as crashed:
        written(module, "print('last words', flush=True); os.abort()")
    assert "  last words" in str(crashed.value)
    with pytest.raises(CompileError, match=r"the export failed \(exit code 3\)") as failed:
        written(module, "print('first'); print('\\n'.join(map(str, range(99)))); sys.exit(3)")
    kept = Path(str(failed.value).split("its log is ")[1].split(";")[0])
    assert kept.read_text().splitlines()[0] == "first"
    assert "  98" in str(failed.value)
    assert "  50" not in str(failed.value)


def test_an_export_is_given_its_request(module: Path) -> None:
    assert written(module, "print(r)").read_text() == "{'answer': 42}\n"


def test_what_an_export_leaves_running_ends_with_it(module: Path) -> None:
    log = written(module, "import subprocess; print(subprocess.Popen(['sleep', '600']).pid)")
    _await_end(int(log.read_text()))


def test_when_its_parent_is_killed_the_export_and_its_compiler_end(tmp_path: Path, module: Path) -> None:
    module.write_text(
        PROGRAM + "import signal, subprocess; child = subprocess.Popen(['sleep', '600'])\n"
        "print(os.getpid(), child.pid, file=open(sys.argv[0] + '.pids', 'w'), flush=True); signal.pause()\n"
    )
    pids, ready = Path(f"{module}.pids"), module.parent / "ready"
    os.mkfifo(ready)
    text = module.read_text().replace("signal.pause()", f"open({str(ready)!r}, 'w').close(); signal.pause()")
    module.write_text(text)
    parent = subprocess.Popen(
        [
            sys.executable, "-c",
            "import sys; from pathlib import Path; from compile.targets.neuron_compiler import run_export\n"
            "run_export(sys.argv[1], {}, Path(sys.argv[2]), 'x', 600.0)",
            module.stem, str(tmp_path),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
    )  # fmt: skip
    ready.read_text()  # returns when the export has opened and closed it
    export, compiler = map(int, pids.read_text().split())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _await_end(export)
    _await_end(compiler)


def _await_end(pid: int) -> None:
    """Return when a process is gone, or dead and waiting for init; the tests' timeout ends a wait for ever."""
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            os.sched_yield()


def test_the_double_is_gone_after_it_was_used() -> None:
    code = (
        "import os, sys\n"
        "from neuron_tools import neuron_double\n"
        "before = set(sys.modules), list(sys.path), dict(os.environ)\n"
        "with neuron_double():\n"
        "    from optimum.neuron import NeuronModelForSequenceClassification\n"
        "    import torch_neuronx\n"
        "left = {name.split('.')[0] for name in set(sys.modules) - before[0]}\n"
        "wrong = left & {'optimum', 'torch_neuronx', 'neuronxcc', 'sdk_double', 'torch_xla', 'neuronx_distributed'}\n"
        "assert not wrong, wrong\n"
        "assert (before[1], before[2]) == (sys.path, dict(os.environ))\n"
        "from compile.targets import load_target\n"
        "assert 'torch-neuronx is not installed' in load_target('neuron').unavailable()\n"
    )
    path = os.pathsep.join(each for each in sys.path if each and each != str(DOUBLE))
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, check=True)
