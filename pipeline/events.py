"""The event log: who did what from when to when. Wall clocks live here and in the report, never in the data."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pipeline.errors import StorageError
from pipeline.objects import Objects

_FLUSH_SECONDS = 5.0
_MAX_LINES = 500
"""Of one object: each flush writes the object anew, and a long night has a hundred thousand events."""
_STARTED = time.time() - time.monotonic()


def now() -> float:
    """Epoch seconds by the wall clock as it was when this process started: a clock that is set back or forth since
    then does not change a duration."""
    return _STARTED + time.monotonic()


class EventLog:
    """One writer of objects of JSON lines; what a killed process had not flushed is lost, the data is not."""

    def __init__(self, objects: Objects, uri: str, **common: Any) -> None:
        """`uri` ends in `/`; `common` fields go into every event."""
        self._objects = objects
        self._uri = f"{uri}{common.get('step', 'run')}-{uuid.uuid4().hex}"
        self._number = 0
        self._common = {"host": socket.gethostname(), "pid": os.getpid(), **common}
        self._lines: list[str] = []
        self._flushed_at = 0.0

    def write(self, event: str, started: float, ended: float, **fields: Any) -> None:
        """One event with its start and end in epoch seconds."""
        record = {"event": event, "started": started, "ended": ended, **self._common, **fields}
        self._lines.append(json.dumps(record, default=str))
        if time.monotonic() - self._flushed_at > _FLUSH_SECONDS or len(self._lines) == _MAX_LINES:
            self.flush()

    def flush(self) -> None:
        if not self._lines:
            return
        self._objects.put(f"{self._uri}-{self._number:05d}.jsonl", ("\n".join(self._lines) + "\n").encode())
        self._flushed_at = time.monotonic()
        if len(self._lines) >= _MAX_LINES:
            self._lines.clear()
            self._number += 1


@contextmanager
def timed(log: EventLog, event: str, started: float | None = None) -> Iterator[dict[str, Any]]:
    """Write one event over the body, also when it fails; the body may add fields to the yielded dict.

    `started` is in epoch seconds, for work that began before the log could be opened.
    """
    started, cpu = now() if started is None else started, time.process_time()
    fields: dict[str, Any] = {}

    def close() -> None:
        used = {"cpu_s": time.process_time() - cpu, "peak_memory_bytes": peak_memory_bytes()}
        log.write(event, started, now(), **fields, **used)
        log.flush()

    try:
        yield fields
    except BaseException as error:
        fields.update(ok=False, error=type(error).__name__)
        with suppress(StorageError):  # where the store fails, the body's own error says more
            close()
        raise
    fields["ok"] = True
    close()


def peak_memory_bytes() -> int:
    """Most resident memory that this process ever had. Not getrusage: its figure is inherited over fork and exec."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


def read_events(objects: Objects, uri: str) -> Iterator[dict[str, Any]]:
    """Every event under a prefix, one writer's after the other's."""
    for name in objects.list(uri):
        for line in objects.get(name).decode().splitlines():
            yield json.loads(line)


def union_seconds(intervals: list[tuple[float, float]]) -> float:
    """Seconds covered by at least one interval: what overlapping or repeated work took on the clock."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
