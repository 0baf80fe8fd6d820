"""Parquet bytes <-> Arrow tables: always through memory, because an interrupted stream would publish what it has."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

_PLAIN: dict[str, Any] = {
    "compression": "zstd", "version": "2.4", "store_schema": False, "coerce_timestamps": "us",
}  # fmt: skip
_GROUP_BYTES = 64 << 20
"""A row group is closed when it has this much, or as many rows as a split; small parts share one."""


def parquet_bytes(table: pa.Table) -> bytes:
    """A Parquet file that every reader takes: no Arrow schema inside, format 2.4, zstd."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **_PLAIN)
    return buffer.getvalue()


def write_joined(tables: Iterator[pa.Table], file: BinaryIO, group_rows: int) -> None:
    """Tables of one schema, at least one, as one Parquet file with row groups of about `group_rows` or less.

    Memory: one table and one row group.
    """
    first = next(tables)
    with pq.ParquetWriter(file, first.schema, **_PLAIN) as writer:
        waiting = [first]
        for table in tables:
            if sum(item.num_rows for item in waiting) >= group_rows or sum(i.nbytes for i in waiting) >= _GROUP_BYTES:
                _write_group(writer, waiting)
                waiting = []
            waiting.append(table)
        _write_group(writer, waiting)


def _write_group(writer: pq.ParquetWriter, tables: list[pa.Table]) -> None:
    whole = pa.concat_tables(tables)
    writer.write_table(whole, row_group_size=max(1, whole.num_rows))


def read_table(data: bytes) -> pa.Table:
    return pq.read_table(pa.BufferReader(data))
