"""The event log: who did what from when to when. Wall clocks live here and in the report, never in the data."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.objects import Objects

_FLUSH_SECONDS = 5.0


class EventLog:
    """One writer, one object of JSON lines; what a killed process had not flushed is lost, the data is not."""

    def __init__(self, objects: Objects, uri: str, **common: Any) -> None:
        """`uri` ends in `/`; `common` fields go into every event."""
        self._objects = objects
        self._uri = f"{uri}{common.get('step', 'run')}-{uuid.uuid4().hex}.jsonl"
        self._common = {"host": socket.gethostname(), "pid": os.getpid(), **common}
        self._lines: list[str] = []
        self._flushed_at = 0.0

    def write(self, event: str, started: float, ended: float, **fields: Any) -> None:
        """One event with its start and end in epoch seconds."""
        record = {"event": event, "started": started, "ended": ended, **self._common, **fields}
        self._lines.append(json.dumps(record, default=str))
        if time.monotonic() - self._flushed_at > _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._objects.put(self._uri, ("\n".join(self._lines) + "\n").encode())
        self._flushed_at = time.monotonic()


@contextmanager
def timed(log: EventLog, event: str, started: float | None = None) -> Iterator[dict[str, Any]]:
    """Write one event over the body, also when it fails; the body may add fields to the yielded dict.

    `started` is in epoch seconds, for work that began before the log could be opened.
    """
    started = time.time() if started is None else started
    fields: dict[str, Any] = {}
    try:
        yield fields
        fields["ok"] = True
    except BaseException as error:
        fields.update(ok=False, error=type(error).__name__)
        raise
    finally:
        log.write(event, started, time.time(), **fields, peak_memory_bytes=peak_memory_bytes())
        log.flush()


def peak_memory_bytes() -> int:
    """Most resident memory that this process ever had. Not getrusage: its figure is inherited over fork and exec."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


def read_events(objects: Objects, uri: str) -> list[dict[str, Any]]:
    """Every event under a prefix, by start."""
    events = [
        json.loads(line) for name in objects.list(uri) for line in objects.get(name).decode().splitlines() if line
    ]
    return sorted(events, key=lambda event: (event["started"], event["ended"]))


def union_seconds(intervals: list[tuple[float, float]]) -> float:
    """Seconds covered by at least one interval: what overlapping or repeated work took on the clock."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
