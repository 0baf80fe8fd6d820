"""Samples neuron-monitor into the event log while a worker infers, where there is one; a worker never waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from pipeline.errors import StorageError
from pipeline.events import EventLog, now
from pipeline.locks import lock_dir
from pipeline.neuron_devices import neuron_tool
from pipeline.neuron_usage import CONFIG, Usage

EVENT = "neuron"
_WINDOW_S = 60.0
"""One event for so long: a night of reports every few seconds would be most of the log."""
_LONGEST_LINE = 1 << 22
_JOIN_S = 2.0
_KEEPER = 'trap "" INT TERM HUP; "$@" </dev/null & exec >&-; read -r _; kill -9 $!'
"""Ends the monitor, hung or not, once its own input ends: when the worker says so, or is dead."""


@contextmanager
def monitored(
    cores: Sequence[int], log: EventLog, say: Callable[[str], None], window_s: float = _WINDOW_S
) -> Iterator[None]:
    """Events `neuron` about the cores while the body runs. `log` is used by another thread and must be its own."""
    tool = neuron_tool("neuron-monitor")
    if tool is None:
        yield
        return
    try:
        keeper = _start(tool)
    except OSError as error:
        say(f"infer: {tool} does not start ({error}); going on without figures of the device")
        yield
        return
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    sampler = threading.Thread(target=_sample, args=(keeper.stdout, cores, log, window_s), daemon=True)
    sampler.start()
    try:
        yield
    finally:
        keeper.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            keeper.wait(_JOIN_S)
        sampler.join(_JOIN_S)  # a child of the monitor may still hold its output open


def _start(tool: str) -> subprocess.Popen[bytes]:
    config = lock_dir() / "neuron-monitor.json"
    config.parent.mkdir(parents=True, exist_ok=True)
    _write_whole(config, json.dumps(CONFIG))
    return subprocess.Popen(
        ["/bin/sh", "-c", _KEEPER, "sh", tool, "-c", str(config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _write_whole(path: Path, text: str) -> None:
    """So that no other worker's monitor reads half of it."""
    if not path.exists() or path.read_text() != text:
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(text)
        part.replace(path)


def _sample(lines: IO[bytes], cores: Sequence[int], log: EventLog, window_s: float) -> None:
    """Until the monitor ends. What goes wrong here ends the sampling, nothing else."""
    with suppress(OSError, ValueError, StorageError):
        started, usage = now(), Usage(cores, (os.getpid(),))
        while line := lines.readline(_LONGEST_LINE):
            usage.add(line.decode(errors="replace"))
            if now() - started >= window_s:
                log.write(EVENT, started, now(), core=cores[0], **usage.event())
                started, usage = now(), Usage(cores, (os.getpid(),))
        if usage.reports or usage.unreadable:
            log.write(EVENT, started, now(), core=cores[0], **usage.event())
        log.flush()
