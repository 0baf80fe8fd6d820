"""Parquet bytes <-> Arrow tables: always through memory, because an interrupted stream would publish what it has."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq


def parquet_bytes(table: pa.Table) -> bytes:
    """A Parquet file that every reader takes: no Arrow schema inside, format 2.4, zstd."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", version="2.4", store_schema=False, coerce_timestamps="us")
    return buffer.getvalue()


def read_table(data: bytes) -> pa.Table:
    return pq.read_table(pa.BufferReader(data))
