"""What a shard's rows gave: logits, or the reason for which a row has none; stored as one Arrow IPC object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ShardResult:
    """Rows in the shard's order."""

    logits: NDArray[np.float32]
    """Shape (rows, labels); NaN where the row has a fault."""
    faults: tuple[str | None, ...]
    """Per row the reason code of a reject, None for a row that was executed."""

    def __len__(self) -> int:
        return len(self.faults)

    @classmethod
    def executed(cls, logits: NDArray[np.float32]) -> ShardResult:
        return cls(logits, (None,) * len(logits))

    @classmethod
    def faulty(cls, reason: str, labels: int) -> ShardResult:
        """One row that could not be executed."""
        return cls(np.full((1, labels), np.nan, np.float32), (reason,))

    @classmethod
    def joined(cls, parts: Sequence[ShardResult], labels: int) -> ShardResult:
        """The parts end to end."""
        empty = np.empty((0, labels), np.float32)
        logits = np.concatenate([empty, *(part.logits for part in parts)])
        return cls(logits, tuple(fault for part in parts for fault in part.faults))

    def part(self, start: int, stop: int) -> ShardResult:
        return ShardResult(self.logits[start:stop], self.faults[start:stop])

    @property
    def fault_count(self) -> int:
        return sum(fault is not None for fault in self.faults)

    def encode(self) -> bytes:
        """An Arrow IPC file: `logits` fixed_size_list<float32>, `fault` string, null where there is none."""
        values = pa.FixedSizeListArray.from_arrays(pa.array(self.logits.ravel(), pa.float32()), self.logits.shape[1])
        table = pa.table({"logits": values, "fault": pa.array(self.faults, pa.string())})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())

    @classmethod
    def decode(cls, data: bytes) -> ShardResult:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        column = table["logits"].combine_chunks()
        logits = np.asarray(column.flatten(), np.float32).reshape(len(column), column.type.list_size)
        return cls(logits, tuple(table["fault"].to_pylist()))
