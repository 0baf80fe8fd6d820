"""Steps as processes of their own: the same interpreter, followed line by line, ended with their parent."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

PARENT_VARIABLE = "LENGTHWISE_PARENT_PID"
ADVANCE_PREFIX = "@rows "
"""Lines of a child that start so are progress for the parent's bar, not for a person."""
ERROR_PREFIX = "error: "
"""Lines of a child that start so say why it ends."""
_PR_SET_PDEATHSIG = 1
_KEPT_LINES = 40
_STOP_GRACE_S = 10


def die_with_parent() -> None:
    """Called first thing in a child: the kernel ends it when the parent dies, even by kill -9 (Linux prctl(2))."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it died before the call
        sys.exit(1)


class StepProcess:
    """One `python -m pipeline step ...` in this process group; its output is handed on as it comes."""

    def __init__(
        self,
        arguments: list[str],
        say: Callable[[str], None],
        advance: Callable[[int], None],
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        """`descriptors` are open files that it inherits, for example a lease."""
        self._say = say
        self._advance = advance
        self.errors: deque[str] = deque(maxlen=_KEPT_LINES)
        self._last = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pipeline", "step", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **(environment or {}), PARENT_VARIABLE: str(os.getpid())},
            pass_fds=descriptors,
        )
        self._threads = [
            threading.Thread(target=follow, daemon=True) for follow in (self._follow_out, self._follow_err)
        ]
        for thread in self._threads:
            thread.start()

    def _follow_out(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._last = line

    def _follow_err(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = line.rstrip("\n")
            if text.startswith(ADVANCE_PREFIX):
                self._advance(int(text.removeprefix(ADVANCE_PREFIX)))
            elif text:
                self.errors.append(text)
                if not text.startswith(ERROR_PREFIX):  # whoever waits for the end decides about that
                    self._say(text)

    def wait(self) -> tuple[int, dict[str, Any]]:
        """Exit code (negative: the signal that ended it) and the JSON result, empty unless the code is 0."""
        code = self._process.wait()
        for thread in self._threads:
            thread.join()
        return code, json.loads(self._last) if code == 0 else {}

    def ask_to_end(self) -> None:
        """SIGTERM, after which a worker finishes its shard where that takes some seconds only."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """End it and wait for its end."""
        self.ask_to_end()
        try:
            self._process.wait(_STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
