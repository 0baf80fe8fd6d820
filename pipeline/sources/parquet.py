"""Parquet input: row groups are the units, only the columns that the job names are read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import JobError
from pipeline.job import Input
from pipeline.objects import ObjectInfo, Objects
from pipeline.rejects import Reject, reject
from pipeline.sources import SourceRow
from pipeline.splits import Piece, Unit

_BATCH_ROWS = 1_024


_REASONS: dict[type[Exception], str] = {UnicodeDecodeError: "invalid_utf8"}


class ParquetSource:
    def units(self, objects: Objects, info: ObjectInfo, name: str, index: int, spec: Input) -> Iterator[Unit]:
        with objects.open(info) as file:
            parquet = _open(file, info)
            metadata = parquet.metadata
            _columns(parquet.schema_arrow.names, info, spec)
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            yield Unit(index, group, group + 1, row_group.num_rows, row_group.total_byte_size)

    def rows(self, objects: Objects, info: ObjectInfo, name: str, piece: Piece, spec: Input) -> Iterator[SourceRow]:
        with objects.open(info) as file:
            parquet = _open(file, info)
            columns = _columns(parquet.schema_arrow.names, info, spec)
            batches = parquet.iter_batches(
                _BATCH_ROWS, row_groups=range(piece.start, piece.stop), columns=columns, use_threads=False
            )
            row = 0
            with _damage_named(info):
                for batch in batches:
                    for values in _values(_in_microseconds(batch)):
                        fault = values if isinstance(values, Reject) else None
                        yield SourceRow(row, None if isinstance(values, Reject) else values, fault)
                        row += 1


def _open(file: object, info: ObjectInfo) -> pq.ParquetFile:
    with _damage_named(info):
        parquet = pq.ParquetFile(file, page_checksum_verification=True)
        _ = parquet.schema_arrow  # a schema that Arrow has no types for shows here
    return parquet


def _in_microseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Python's datetime has no nanoseconds: pyarrow would raise, or return pandas objects where pandas is installed."""
    for index, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            column = batch.column(index).cast(pa.timestamp("us", field.type.tz), safe=False)
            batch = batch.set_column(index, field.name, column)
    return batch


def _values(batch: pa.RecordBatch) -> list[dict[str, Any] | Reject]:
    """Rows as Python values; what has none (text that is not UTF-8, a year over 9999) is a fault of its row only."""
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError):
        if batch.num_rows > 1:
            half = batch.num_rows // 2
            return [*_values(batch.slice(0, half)), *_values(batch.slice(half))]
    columns, message, reason = {}, "", ""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            columns[name] = column[0].as_py()
        except (ValueError, OverflowError) as error:
            columns[name] = None
            message, reason = f"column {name!r}: {error}", _REASONS.get(type(error), "bad_kept_value")
    return [reject("read", reason, message, columns)]


@contextlib.contextmanager
def _damage_named(info: ObjectInfo) -> Iterator[None]:
    """pyarrow raises a bare OSError for a damaged page or footer; what the object store raises passes through."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        message = f"{info.uri}: not a readable Parquet file ({error}); mend or remove it, or set input.format"
        raise JobError(message) from error


def _columns(present: list[str], info: ObjectInfo, spec: Input) -> list[str]:
    """The job's columns; one that a Parquet file lacks is a mistake in the job, not in every row."""
    wanted = spec.all_columns()
    for column in wanted:
        if column not in present:
            raise JobError(f"{info.uri}: no column {column!r}; it has: {', '.join(present)}")
    return wanted


source = ParquetSource()
