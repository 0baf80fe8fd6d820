"""Which rows of a shard kill the process that executes them: it is done in other processes, in ever smaller pieces.

What was tried lies beside the shards on the store, so that it goes on from there on any host, whoever died.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from compile.errors import DeviceError
from pipeline.errors import WorkerError
from pipeline.execution import Health
from pipeline.layout import shard_folder
from pipeline.objects import Objects
from pipeline.shard_result import ShardResult

_SEEN_DEATHS, _UNSEEN_DEATHS = 2, 4
"""Deaths of a row alone that make it a reject; more of them where only markers tell, for a host may have been lost."""
MAX_DEADLY_ROWS = 8
"""Of one shard. More than these are no bad rows, and each costs some twenty starts of a process."""

PieceRunner = Callable[[int, int], tuple[int, dict[str, Any], Exception | None]]
"""Executes rows [start, stop) of the shard in a process of its own, which stores them as `piece_object` says.

Returns its exit code, its JSON result, and the error to raise where the code is one that says what is wrong.
"""


def piece_object(run_uri: str, shard: int, start: int, stop: int) -> str:
    return f"{shard_folder(run_uri, shard)}{start:06d}-{stop:06d}.arrow"


@dataclass(slots=True)
class Isolation:
    """One shard that somebody died on.

    Bound: for k deadly rows among n at most 2 + k * (2 * ceil(log2 n) + 2) processes; 1 + k of them test the device.
    """

    objects: Objects
    run_uri: str
    shard: int
    kind: pa.DataType
    """Of a row's output."""
    health: Health
    run_piece: PieceRunner
    say: Callable[[str], None]
    executions: int = 0
    deadly_rows: int = 0
    device_tested: bool = False

    def run(self, rows: int) -> ShardResult:
        """Results of all rows. Raises DeviceError when the device, not a row, is at fault; other errors of a piece."""
        self.say(f"infer: shard {self.shard} is executed in a process of its own, in pieces where that dies")
        try:
            return self._settle(0, rows)
        except DeviceError:
            self._forget()  # what died on a broken device says nothing about a row
            raise

    def _settle(self, start: int, stop: int) -> ShardResult:
        """Results of rows [start, stop): found, executed, or put together from the two halves."""
        found = self._found(start, stop)
        if found is None and stop - start == 1:
            found = self._alone(start)
        elif found is None and not self._deaths(start, stop):
            found = self._attempt(start, stop)
        if found is not None:
            self._count(found)
            return found
        middle = (start + stop) // 2
        return ShardResult.joined([self._settle(start, middle), self._settle(middle, stop)], self.kind)

    def _alone(self, row: int) -> ShardResult:
        """A row by itself: its result, or its fault when it has killed often enough."""
        seen = 0
        while self._deaths(row, row + 1) < (_SEEN_DEATHS if seen else _UNSEEN_DEATHS):
            found = self._attempt(row, row + 1)
            if found is not None:
                return found
            seen += 1
        self._require_device()
        fault = ShardResult.faulty("worker_killed", self.kind)
        self.objects.put_new(piece_object(self.run_uri, self.shard, row, row + 1), fault.encode())
        self.say(f"infer: row {row} of shard {self.shard} kills the process; it is a reject")
        return fault

    def _count(self, found: ShardResult) -> None:
        self.health.count(found)
        self.deadly_rows += found.faults.count("worker_killed")
        if self.deadly_rows > MAX_DEADLY_ROWS:
            raise WorkerError(
                f"more than {MAX_DEADLY_ROWS} rows of shard {self.shard} kill the process that executes them: this is "
                "not about single rows. Look after the device and the model, then run again"
            )

    def _attempt(self, start: int, stop: int) -> ShardResult | None:
        """Execute a piece; None when the process died. What is no death leaves no marker."""
        marker = self._marker(start, stop, self._deaths(start, stop) + 1)
        self.objects.put_new(marker, b"")
        try:
            code, result, error = self.run_piece(start, stop)
            if code == 0:
                self.executions += int(result["executions"])
                return self._found(start, stop)
            if error is not None:
                raise error
        except BaseException:
            self.objects.delete(marker)
            raise
        self.say(f"infer: rows {start} to {stop - 1} of shard {self.shard}: the process died ({_ending(code)})")
        if not self.device_tested:
            self._require_device()
        return None

    def _require_device(self) -> None:
        """An empty piece loads the model and executes padding. Raises DeviceError when that fails."""
        code, _, error = self.run_piece(0, 0)
        if error is not None:
            raise error
        if code:
            raise DeviceError(
                f"the process dies ({_ending(code)}) without executing any row: the device, the model or the memory of "
                "this host is at fault, and no row was rejected for it. Look after it, then run again"
            )
        self.device_tested = True

    def _found(self, start: int, stop: int) -> ShardResult | None:
        try:
            return ShardResult.decode(self.objects.get(piece_object(self.run_uri, self.shard, start, stop)))
        except FileNotFoundError:
            return None

    def _deaths(self, start: int, stop: int) -> int:
        return len(self.objects.list(self._marker(start, stop, None)))

    def _marker(self, start: int, stop: int, number: int | None) -> str:
        """Created before a piece is executed; it outlives whoever dies then."""
        return f"{shard_folder(self.run_uri, self.shard)}{start:06d}-{stop:06d}.begun-{number or ''}"

    def _forget(self) -> None:
        for uri in self.objects.list(shard_folder(self.run_uri, self.shard)):
            self.objects.delete(uri)


def suspects(run_uri: str, names: list[str]) -> set[int]:
    """Shards that an isolation was begun for and not ended, from the names of all objects under the run's shards."""
    pattern = re.compile(re.escape(f"{run_uri}/shards/") + r"shard-(\d+)/")
    return {int(match[1]) for match in map(pattern.match, names) if match}


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
