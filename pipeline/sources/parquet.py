"""Parquet input: row groups are the units, only the columns that the job names are read."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import JobError
from pipeline.job import Input
from pipeline.objects import ObjectInfo, Objects
from pipeline.sources import SourceRow
from pipeline.splits import Piece, Unit

_BATCH_ROWS = 1_024


class ParquetSource:
    def units(self, objects: Objects, info: ObjectInfo, name: str, index: int, spec: Input) -> Iterator[Unit]:
        with objects.open(info) as file:
            metadata = _open(file, info).metadata
        _columns(metadata.schema.to_arrow_schema().names, info, spec)
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
            try:
                for batch in batches:
                    for values in batch.to_pylist():
                        yield SourceRow(row, values, None)
                        row += 1
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise _damaged(info, error) from error


def _open(file: object, info: ObjectInfo) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _damaged(info, error) from error


def _damaged(info: ObjectInfo, error: Exception) -> JobError:
    return JobError(f"{info.uri}: not a readable Parquet file ({error}); mend or remove it, or set input.format")


def _columns(present: list[str], info: ObjectInfo, spec: Input) -> list[str]:
    """The job's columns; one that a Parquet file lacks is a mistake in the job, not in every row."""
    wanted = list(dict.fromkeys([*spec.text_columns(), *([spec.id] if spec.id else [])]))
    kept = [column.column for column in spec.keep.values()]
    for column in wanted + kept:
        if column not in present:
            raise JobError(f"{info.uri}: no column {column!r}; it has: {', '.join(present)}")
    return list(dict.fromkeys(wanted + kept))


source = ParquetSource()
