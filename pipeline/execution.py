"""How rows are executed on a device: in batches, and where one fails in halves, until rows at fault are alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from compile.errors import ArtifactError, DeviceError, ShapeMismatch
from compile.shapes import Shape
from pipeline.shard_result import ShardResult
from pipeline.tokenized import TokenBlock

BROKEN_AFTER_ROWS = 32
"""So many rows that failed alone while none ever worked are no bad rows: the device or the model is at fault."""


@dataclass(slots=True)
class Health:
    """What a worker has seen of its device."""

    good_rows: int = 0
    faulty_rows: int = 0

    def count(self, result: ShardResult) -> None:
        """Raises DeviceError when what was seen so far says that it is not about single rows."""
        self.faulty_rows += result.fault_count
        self.good_rows += len(result) - result.fault_count
        if is_broken(self.good_rows, self.faulty_rows):
            raise DeviceError(
                f"{self.faulty_rows} rows failed on the device, each by itself, and not one worked: the device or the "
                "model is at fault, not these rows; none of them was rejected. Mend it, then run again"
            )


def is_broken(good_rows: int, faulty_rows: int) -> bool:
    """Whether rows that fail speak against the device instead of the rows."""
    return good_rows == 0 and faulty_rows >= BROKEN_AFTER_ROWS


class Engine(Protocol):
    """A loaded artifact that executes rows of one task."""

    group: int
    """Most rows of one execution."""
    kind: pa.DataType
    """Of a row's output."""

    def execute(self, rows: TokenBlock) -> pa.Array:
        """One output per row, without nulls. Any error but ShapeMismatch and ArtifactError may be a row's fault."""

    def idle(self) -> None:
        """Execute without any row. Raises as `execute`."""

    def counts(self) -> dict[str, Any]:
        """What else the event of a shard tells of what was executed since this was last asked."""


EngineMaker = Callable[[Any, Shape], Engine]
"""What `target.load` returned for a shape, as an engine."""


@dataclass(slots=True)
class Executor:
    """One engine over rows of its shape.

    Bound: for k rows at fault in groups of B, at most k * (2 * ceil(log2 B) + 2) executions more than groups.
    """

    engine: Engine
    health: Health
    on_fault: Callable[[str], None]
    """Told what the engine said of a row at fault, before it is a reject."""
    executions: int = 0
    _said: str = ""

    def run(self, block: TokenBlock) -> ShardResult:
        """Results of all rows. Raises DeviceError when the device fails without them, too."""
        return self._joined([self._rows(rows) for rows in block.cut(self.engine.group)])

    def probe(self) -> None:
        """Execute without any row. Raises DeviceError when the device cannot even do that."""
        self.executions += 1
        if not self._works(self.engine.idle):
            raise DeviceError(
                f"the device fails on a batch without any row, too: {self._said}. What is finished is kept; if it "
                "happens again, look after the device"
            )

    def _rows(self, rows: TokenBlock) -> ShardResult:
        found = self._attempt(rows)
        if found is not None:
            return found
        if len(rows) == 1:
            return self._alone(rows)
        return self._joined([self._rows(half) for half in rows.cut(-(-len(rows) // 2))])

    def _alone(self, row: TokenBlock) -> ShardResult:
        """A row that has failed by itself: at fault if it fails again while the device works without it."""
        found = self._attempt(row)
        if found is not None:
            return found
        said = self._said
        self.probe()
        self.on_fault(said)
        return self._counted(ShardResult.faulty("device_error", self.engine.kind))

    def _attempt(self, rows: TokenBlock) -> ShardResult | None:
        """None when the device failed."""
        self.executions += 1
        found: list[pa.Array] = []
        if self._works(lambda: found.append(self.engine.execute(rows))):
            return self._counted(ShardResult.executed(found[0]))
        return None

    def _works(self, execute: Callable[[], None]) -> bool:
        try:
            execute()
        except (ShapeMismatch, ArtifactError):  # defects of ours or of the artifact: no row is to blame
            raise
        except Exception as error:  # an engine may raise anything; only DeviceError is promised
            self._said = f"{type(error).__name__}: {error}"
            return False
        return True

    def _counted(self, result: ShardResult) -> ShardResult:
        self.health.count(result)
        return result

    def _joined(self, parts: list[ShardResult]) -> ShardResult:
        return ShardResult.joined(parts, self.engine.kind)
