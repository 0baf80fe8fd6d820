"""Parquet input: runs of rows within row groups are the units, only the columns that the job names are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.job import Input
from pipeline.objects import ObjectInfo, Objects
from pipeline.rejects import Reject
from pipeline.sources import SourceRow
from pipeline.sources.arrow_rows import Paths, batch_values, column_paths, damage_named
from pipeline.splits import Piece, Unit, row_units

_BATCH_ROWS = 1_024
_BUFFER_BYTES = 4 << 20
"""Read of a column at once: a whole column of a large row group would not fit into what a split may take."""
_KIND = "Parquet file"


class ParquetSource:
    def units(self, objects: Objects, info: ObjectInfo, name: str, index: int, spec: Input) -> Iterator[Unit]:
        with objects.open(info) as file:
            parquet = _open(file, info)
            names = _names(column_paths(parquet.schema_arrow, info, spec))
        first = 0
        for group in range(parquet.metadata.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            size_bytes = _size_bytes(parquet.metadata.row_group(group), names)
            yield from row_units(index, first, rows, size_bytes, spec.split_bytes, spec.split_rows)
            first += rows

    def rows(self, objects: Objects, info: ObjectInfo, name: str, piece: Piece, spec: Input) -> Iterator[SourceRow]:
        with objects.open(info) as file:
            parquet = _open(file, info)
            paths = column_paths(parquet.schema_arrow, info, spec)
            with damage_named(info, _KIND):
                batches = (batch_values(batch, paths) for batch in _batches(parquet, paths, piece))
                for row, values in enumerate(value for batch in batches for value in batch):
                    fault = values if isinstance(values, Reject) else None
                    yield SourceRow(row, None if isinstance(values, Reject) else values, fault)


def _open(file: object, info: ObjectInfo) -> pq.ParquetFile:
    with damage_named(info, _KIND):
        parquet = pq.ParquetFile(file, page_checksum_verification=True, buffer_size=_BUFFER_BYTES)
        _ = parquet.schema_arrow  # a schema that Arrow has no types for shows here
    return parquet


def _names(paths: Paths) -> list[str]:
    """As pyarrow selects columns: a struct's leaf by its dotted path. A name that fits more only reads more."""
    return [".".join(path) for path in paths.values()]


def _size_bytes(group: Any, names: Iterable[str]) -> int:
    """Uncompressed bytes of the named columns in a row group."""
    prefixes = tuple(f"{name}." for name in names)
    columns = [group.column(number) for number in range(group.num_columns)]
    return sum(column.total_uncompressed_size for column in columns if f"{column.path_in_schema}.".startswith(prefixes))


def _batches(parquet: pq.ParquetFile, paths: Paths, piece: Piece) -> Iterator[pa.RecordBatch]:
    """The piece's rows; those before it in its first row group are read and dropped, for pages have no index here."""
    groups: list[int] = []
    skip = first = 0
    for group in range(parquet.metadata.num_row_groups):
        last = first + parquet.metadata.row_group(group).num_rows
        if first < piece.stop and piece.start < last:
            skip = skip if groups else piece.start - first
            groups.append(group)
        first = last
    wanted = piece.stop - piece.start
    for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=groups, columns=_names(paths), use_threads=False):
        dropped = min(skip, batch.num_rows)
        skip -= dropped
        part = batch.slice(dropped, wanted)
        wanted -= part.num_rows
        yield part
        if not wanted:
            return


source = ParquetSource()
