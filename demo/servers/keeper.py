"""Decides when a server and everything it started must end: at its owner's request, or when its owner is gone.

Run as `python keeper.py GRACE_S STOP_SIGNAL ARGV...` with a pipe on standard input. The end of that pipe (closed by the
owner, or by the kernel when the owner died, even by kill -9), SIGTERM, or the server's own end starts the shutdown. The
keeper is the server's subreaper, so daemons and double forks stay its descendants and are found by their ids.
Standard library only: it runs isolated, in about 20 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def descendants(pid: int) -> list[int]:
    """Ids of all living processes below `pid`, parents before children. Empty where there is no /proc."""
    found: list[int] = []
    pending = [pid]
    while pending:
        for task in Path(f"/proc/{pending.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = [int(child) for child in task.read_text().split()]
                found += children
                pending += children
    return found


def _reap() -> None:
    """Collect every child that ended, so that a zombie is not taken for a living process."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _gone(grace_s: float, alive: Callable[[], bool]) -> bool:
    """Wait until `alive` turns false, at most `grace_s` seconds."""
    deadline = time.monotonic() + grace_s
    while alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _wait_for_end(server: subprocess.Popen[bytes]) -> None:
    """Return when the server ended, the owner closed the pipe, or a signal asked for the end."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: asked.append(received))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        while server.poll() is None and not asked:
            ready = [key.fd for key, _ in selector.select()]
            if wake_read in ready:
                os.read(wake_read, 4096)
            if 0 in ready and os.read(0, 4096) == b"":
                return


def keep(argv: list[str], grace_s: float, stop_signal: int) -> int:
    """Run `argv` until it or its owner ends; returns the server's exit status, with no process of it left."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    server = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    _wait_for_end(server)
    if server.poll() is None:
        _send([server.pid], stop_signal)
        if not _gone(grace_s, lambda: server.poll() is None):
            _send([server.pid], signal.SIGKILL)
            server.wait()

    def left() -> bool:
        _reap()
        return bool(descendants(os.getpid()))

    for number in (signal.SIGTERM, signal.SIGKILL):
        _send(descendants(os.getpid()), number)
        if _gone(grace_s / 2, left):
            break
    return server.returncode


if __name__ == "__main__":
    sys.exit(abs(keep(sys.argv[3:], float(sys.argv[1]), int(sys.argv[2]))))
