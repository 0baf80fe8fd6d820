"""What a shard's rows gave: the task's output, or why a row has none; stored as one Arrow IPC object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ShardResult:
    """Rows in the shard's order."""

    output: pa.Array
    """One value per row, of the task's output type; null where the row has a fault."""
    faults: tuple[str | None, ...]
    """Per row the reason code of a reject, None for a row that was executed."""

    def __len__(self) -> int:
        return len(self.faults)

    @classmethod
    def executed(cls, output: pa.Array) -> ShardResult:
        return cls(output, (None,) * len(output))

    @classmethod
    def faulty(cls, reason: str, kind: pa.DataType) -> ShardResult:
        """One row that could not be executed; `kind` is the task's output type."""
        return cls(pa.nulls(1, kind), (reason,))

    @classmethod
    def joined(cls, parts: Sequence[ShardResult], kind: pa.DataType) -> ShardResult:
        """The parts end to end."""
        output = pa.concat_arrays([pa.nulls(0, kind), *(part.output for part in parts)])
        return cls(output, tuple(fault for part in parts for fault in part.faults))

    def part(self, start: int, stop: int) -> ShardResult:
        return ShardResult(self.output[start:stop], self.faults[start:stop])

    @property
    def fault_count(self) -> int:
        return sum(fault is not None for fault in self.faults)

    def encode(self) -> bytes:
        """An Arrow IPC file: `output`, and `fault`, a string that is null where there is none."""
        table = pa.table({"output": self.output, "fault": pa.array(self.faults, pa.string())})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())

    @classmethod
    def decode(cls, data: bytes) -> ShardResult:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        return cls(table["output"].combine_chunks(), tuple(table["fault"].to_pylist()))
