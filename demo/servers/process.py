"""How a server process is started, watched until it is ready, and stopped by its id."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

_KEEPER = Path(__file__).with_name("keeper.py")


class ServerError(Exception):
    """A local server did not start or died; the message ends with the last lines of its log."""


def free_ports(count: int) -> list[int]:
    """Loopback TCP ports that nothing listens on, all different."""
    with contextlib.ExitStack() as stack:
        # All sockets stay bound until every port is chosen, so that no port is handed out twice.
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log file; empty when there is none."""
    if not log.exists():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


@contextlib.contextmanager
def kept(
    argv: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stop_signal: int = signal.SIGTERM,
    grace_s: float = 10,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server under a keeper, output appended to `log`; on exit it and all that it started have ended.

    It also ends when this process dies in any way: the keeper holds the other end of a pipe. It has a session of its
    own, so a Ctrl-C at the terminal reaches only us, and we stop the servers in order.
    """
    command = [sys.executable, "-I", "-S", str(_KEEPER), str(grace_s), str(int(stop_signal)), *argv]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        keeper = subprocess.Popen(
            command,
            env=None if env is None else dict(env),
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    assert keeper.stdin is not None
    try:
        yield keeper
    finally:
        keeper.stdin.close()
        try:
            keeper.wait(2 * grace_s + 5)
        except subprocess.TimeoutExpired:
            os.killpg(keeper.pid, signal.SIGKILL)
            keeper.wait()


def wait_ready(
    process: subprocess.Popen[bytes], name: str, log: Path, ready: Callable[[], bool], timeout_s: float
) -> None:
    """Poll `ready` until it is true. Raises ServerError when the process ends or the time is up."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if process.poll() is not None:
            raise ServerError(f"{name} ended with status {process.returncode} before it was ready\n{tail(log)}")
        if time.monotonic() > deadline:
            raise ServerError(f"{name} was not ready within {timeout_s:g} s; its log is {log}\n{tail(log)}")
        time.sleep(0.05)
