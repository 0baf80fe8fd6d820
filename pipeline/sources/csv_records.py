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
        csv.field_size_limit(_MAX_FIELD_CHARS)
        with _records(objects, info) as text:
            try:
                header = next(csv.reader(text, delimiter=_DELIMITERS[name]), [])
            except (*DAMAGED, csv.Error) as error:
                raise _damaged(info, error) from error
        shown = ", ".join(header)[:500].encode(errors="backslashreplace").decode()
        for column in spec.all_columns():
            if header.count(column) != 1:
                lack = "two columns" if column in header else "no column"
                raise JobError(f"{info.uri}: {lack} {column!r}; its header is: {shown}")
        # A record may hold newlines, so only a reader from the start knows where one begins: never cut.
        yield Unit(index, 0, info.size_bytes, 0, info.size_bytes)

    def rows(self, objects: Objects, info: ObjectInfo, name: str, piece: Piece, spec: Input) -> Iterator[SourceRow]:
        csv.field_size_limit(_MAX_FIELD_CHARS)
        with _records(objects, info) as text:
            lines = _Lines(text)
            reader = csv.reader(lines, delimiter=_DELIMITERS[name], strict=True)
            try:
                header = next(reader, [])
                yield from _rows(lines, reader, header, _typed_columns(spec))
            except DAMAGED as error:
                raise _damaged(info, error) from error


def _damaged(info: ObjectInfo, error: Exception) -> JobError:
    return JobError(f"{info.uri}: damaged or cut short ({error}); mend or replace it")


def _typed_columns(spec: Input) -> frozenset[str]:
    """Columns in which an empty field means null, since CSV has no other way to write it."""
    typed = {kept.column for kept in spec.keep.values() if kept.type != "string"}
    return frozenset(typed.difference(spec.text_columns(), {spec.id}))


class _Lines:
    """Physical lines for a csv reader; `taken` are those that its current record has consumed."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self.taken: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.taken.append(next(self._text))
        return self.taken[-1]


def _rows(lines: _Lines, reader: Any, header: list[str], typed: frozenset[str]) -> Iterator[SourceRow]:
    """A record that is no row rejects each line that it took: one stray quote swallows many, and none may vanish."""
    row = 0
    while True:
        lines.taken.clear()
        try:
            fields = next(reader)
            fault = None if len(fields) == len(header) else f"{len(fields)} fields, the header has {len(header)}"
        except StopIteration:
            return
        except csv.Error as error:
            fields, fault = [""], str(error)
        if not fields:
            continue
        if fault is None:
            pairs = zip(header, fields, strict=True)
            yield SourceRow(row, {name: None if not text and name in typed else text for name, text in pairs}, None)
            row += 1
            continue
        last = reader.line_num
        where = f"lines {last - len(lines.taken) + 1} to {last}" if len(lines.taken) > 1 else f"line {last}"
        for line in lines.taken:
            yield SourceRow(row, None, reject("read", "malformed_csv", f"{where}: {fault}", line.rstrip("\r\n")))
            row += 1


def _records(objects: Objects, info: ObjectInfo) -> io.TextIOWrapper:
    """surrogateescape keeps an invalid byte in its row, where the reject rules find it."""
    file = open_decompressed(objects, info)
    return io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")


source = CsvSource()
