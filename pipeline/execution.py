"""How rows are executed on a device: in batches, and where one fails in halves, until rows at fault are alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compile.batches import batch_flat
from compile.errors import ArtifactError, DeviceError, ShapeMismatch
from compile.targets import Executable
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


@dataclass(slots=True)
class Executor:
    """One loaded executable over rows of its shape.

    Bound: for k rows at fault in batches of B, at most k * (2 * ceil(log2 B) + 2) executions more than batches.
    """

    executable: Executable
    pad_token_id: int
    labels: int
    """Columns of the logits."""
    health: Health
    on_fault: Callable[[str], None]
    """Told what the engine said of a row at fault, before it is a reject."""
    executions: int = 0
    _said: str = ""

    def run(self, block: TokenBlock) -> ShardResult:
        """Results of all rows. Raises DeviceError when the device fails without them, too."""
        return ShardResult.joined([self._rows(rows) for rows in block.cut(self.executable.shape.batch)], self.labels)

    def probe(self) -> None:
        """Execute a batch of padding alone. Raises DeviceError when the device cannot even do that."""
        empty = np.empty(0, np.int64)
        if self._logits(empty, empty, empty) is None:
            raise DeviceError(
                f"the device fails on a batch without any row, too: {self._said}. What is finished is kept; if it "
                "happens again, look after the device"
            )

    def _rows(self, rows: TokenBlock) -> ShardResult:
        logits = self._logits(rows.flat, rows.lengths, rows.rows["segment_b"].astype(np.int64))
        if logits is not None:
            return self._counted(ShardResult.executed(logits))
        if len(rows) == 1:
            return self._alone(rows)
        return ShardResult.joined([self._rows(half) for half in rows.cut(-(-len(rows) // 2))], self.labels)

    def _alone(self, row: TokenBlock) -> ShardResult:
        """A row that has failed by itself: at fault if it fails again while the device works without it."""
        logits = self._logits(row.flat, row.lengths, row.rows["segment_b"].astype(np.int64))
        if logits is not None:
            return self._counted(ShardResult.executed(logits))
        said = self._said
        self.probe()
        self.on_fault(said)
        return self._counted(ShardResult.faulty("device_error", self.labels))

    def _counted(self, result: ShardResult) -> ShardResult:
        self.health.count(result)
        return result

    def _logits(
        self, flat: NDArray[np.int64], lengths: NDArray[np.int64], segment_b: NDArray[np.int64]
    ) -> NDArray[np.float32] | None:
        """Float32 (rows, labels), padding rows dropped; None when the device failed."""
        batch = batch_flat(flat, lengths, segment_b, self.executable.shape, self.pad_token_id)
        self.executions += 1
        try:
            return self.executable.run(batch)[: len(lengths)]
        except (ShapeMismatch, ArtifactError):  # defects of ours or of the artifact: no row is to blame
            raise
        except Exception as error:  # an engine may raise anything; only DeviceError is promised
            self._said = f"{type(error).__name__}: {error}"
            return None
