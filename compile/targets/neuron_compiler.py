"""Runs a Neuron export as a process of its own, and says what became of it: done, failed, killed, or out of time.

The compiler takes minutes and gigabytes, and the kernel ends it where they are missing; whoever asked must live on.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from compile.errors import CompileError

LOG = "compile.log"
"""Of optimum-neuron and the compiler, kept among the artifact's files."""
_TAIL_LINES = 15
_KILLED = re.compile(r"neuronx-cc failed with -9|\[F137\]|forcibly killed")
"""What torch-neuronx and the compiler's driver say of a compiler that was ended by SIGKILL."""
_PR_SET_PDEATHSIG = 1


def run_export(module: str, request: Mapping[str, Any], out_dir: Path, title: str, timeout_s: float) -> None:
    """`python -m module`, given `request` as JSON; its log becomes LOG in out_dir. Raises CompileError with advice.

    `title` names target and shape. The process has a group of its own, which goes with it, with this process, and
    after `timeout_s`. The log of a failure is kept in the folder that the error names.
    """
    log = out_dir / LOG
    command = [sys.executable, "-m", module, json.dumps({**request, "parent": os.getpid()})]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code != 0:
        _fail(log, code, title, timeout_s)


def _fail(log: Path, code: int | None, title: str, timeout_s: float) -> NoReturn:
    text = log.read_text(errors="replace")
    if code is None:
        what = (
            f"was not compiled within {timeout_s / 60:.3g} minutes and was given up; raise "
            "neuron.compile_timeout_minutes, or try neuron.optlevel 1 or a smaller shape"
        )
    elif code == -signal.SIGKILL or _KILLED.search(text):
        what = (
            "was not compiled: the compiler was killed (signal 9), most likely for want of memory on this host; "
            "compile on a host with more memory, fewer shapes at once (workers: 1), or a smaller batch"
        )
    else:
        ended = f"ended with signal {-code}" if code < 0 else f"failed (exit code {code})"
        what = f"was not compiled: the export {ended}; the cause is below or in the log"
    # Indented lines are the frames of tracebacks, which would push the compiler's own words out.
    tail = [line for line in text.splitlines() if line[:1].strip()][-_TAIL_LINES:]
    raise CompileError("\n".join([f"{title} {what}", f"its log is {_kept(log)}; its end:", *(f"  {t}" for t in tail)]))


def _kept(log: Path) -> Path:
    """A copy that outlives the build's folder."""
    folder = Path(tempfile.gettempdir()) / f"lengthwise-{os.getuid()}" / "compile-logs"
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix="neuron-", suffix=".log", dir=folder)
    os.close(descriptor)
    shutil.copyfile(log, name)
    return Path(name)


def begin_export(argument: str) -> dict[str, Any]:
    """First thing in the export's process: the request; from now on its whole group ends when the parent does."""
    request: dict[str, Any] = json.loads(argument)
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != request.pop("parent"):  # it died before the call
        sys.exit(1)
    return request
