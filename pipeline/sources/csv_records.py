"""CSV and TSV input with a header, quoting and embedded newlines; one record is one row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from pipeline.errors import JobError
from pipeline.job import Input
from pipeline.objects import ObjectInfo, Objects
from pipeline.rejects import reject
from pipeline.sources import SourceRow
from pipeline.sources.decompress import DAMAGED, open_decompressed
from pipeline.splits import Piece, Unit

_DELIMITERS = {"csv": ",", "tsv": "\t"}
_MAX_FIELD_CHARS = 16 << 20


class CsvSource:
    def units(self, objects: Objects, info: ObjectInfo, name: str, index: int, spec: Input) -> Iterator[Unit]:
        with _records(objects, info) as text:
            header = next(csv.reader(text, delimiter=_DELIMITERS[name]), [])
        wanted = [*spec.text_columns(), *([spec.id] if spec.id else []), *(kept.column for kept in spec.keep.values())]
        for column in wanted:
            if column not in header:
                raise JobError(f"{info.uri}: no column {column!r}; its header is: {', '.join(header)}")
        # A record may hold newlines, so only a reader from the start knows where one begins: never cut.
        yield Unit(index, 0, info.size_bytes, 0, info.size_bytes)

    def rows(self, objects: Objects, info: ObjectInfo, name: str, piece: Piece, spec: Input) -> Iterator[SourceRow]:
        csv.field_size_limit(_MAX_FIELD_CHARS)
        with _records(objects, info) as text:
            reader = csv.reader(text, delimiter=_DELIMITERS[name], strict=True)
            try:
                header = next(reader, [])
                yield from _rows(reader, header)
            except DAMAGED as error:
                raise JobError(f"{info.uri}: damaged or cut short ({error}); mend or replace it") from error


def _rows(reader: Any, header: list[str]) -> Iterator[SourceRow]:
    row = -1
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            row += 1
            yield SourceRow(row, None, reject("read", "malformed_csv", f"line {reader.line_num}: {error}", ""))
            continue
        if not fields:
            continue
        row += 1
        if len(fields) != len(header):
            message = f"line {reader.line_num}: {len(fields)} fields, the header has {len(header)}"
            yield SourceRow(row, None, reject("read", "malformed_csv", message, fields))
        else:
            yield SourceRow(row, dict(zip(header, fields, strict=True)), None)


def _records(objects: Objects, info: ObjectInfo) -> io.TextIOWrapper:
    """surrogateescape keeps an invalid byte in its row, where the reject rules find it."""
    file = open_decompressed(objects, info)
    return io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")


source = CsvSource()
