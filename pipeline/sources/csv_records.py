"""CSV and TSV input with a header, quoting and embedded newlines; one record is one row, cuts lie between records."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from pipeline.errors import JobError
from pipeline.job import Input
from pipeline.objects import ObjectInfo, Objects
from pipeline.rejects import reject
from pipeline.sources import SourceRow
from pipeline.sources.decompress import damage_named, open_plain
from pipeline.sources.physical_lines import MAX_LINE_BYTES, physical_lines
from pipeline.splits import Piece, Unit

MAX_RECORD_LINES = 100_000
"""Each line of a record that is no row is a reject: a stray quote must not gather more of them than a split has."""
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_SHOWN_CHARS = 500


class CsvSource:
    def units(self, objects: Objects, info: ObjectInfo, name: str, index: int, spec: Input) -> Iterator[Unit]:
        """Reads the object once: only a reader from the start knows which newline ends a record."""
        with open_plain(objects, info) as file, damage_named(info):
            records = _records(file, 0, _DELIMITERS[name])
            _check_header(_header(records, info), info, spec)
            start = stop = rows = 0
            for record in records:
                stop = record.stop
                rows += len(record.lines)
                if stop - start >= spec.split_bytes or rows >= spec.split_rows:
                    yield Unit(index, start, stop, rows, stop - start)
                    start, rows = stop, 0
            if stop > start:
                yield Unit(index, start, stop, rows, stop - start)

    def rows(self, objects: Objects, info: ObjectInfo, name: str, piece: Piece, spec: Input) -> Iterator[SourceRow]:
        delimiter, typed = _DELIMITERS[name], _typed_columns(spec)
        with open_plain(objects, info) as file, damage_named(info):
            records = _records(file, 0, delimiter)
            header = _header(records, info)
            if not piece.start:
                yield from _rows(records, piece.stop, header, typed)
                return
        with open_plain(objects, info, piece.start) as file, damage_named(info):
            yield from _rows(_records(file, piece.start, delimiter), piece.stop, header, typed)


@dataclass(frozen=True, slots=True)
class _Record:
    """What a csv reader took at once."""

    fields: list[str]
    fault: tuple[str, str] | None
    """Reason code and message of a record that is no row."""
    lines: list[bytes]
    """Physical lines, with their ends."""
    start: int
    stop: int
    """First plain byte, and one past the last."""


class _RecordTooLongError(Exception):
    """A record, or what a stray quote makes of the lines after it, is over the limits."""


class _Lines:
    """Physical lines for a csv reader; `taken` are those of its current record."""

    def __init__(self, file: IO[bytes], position: int) -> None:
        self._lines = physical_lines(file, position)
        self.position = position
        self.start = position
        self.taken: list[bytes] = []

    def begin(self) -> None:
        self.start, self.taken = self.position, []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        size, line = next(self._lines)
        self.position += size
        self.taken.append(line)
        if self.position - self.start > MAX_LINE_BYTES or len(self.taken) > MAX_RECORD_LINES:
            raise _RecordTooLongError
        return line.decode("utf-8", errors="surrogateescape")  # the reject rules find an invalid byte in its row


def _records(file: IO[bytes], position: int, delimiter: str) -> Iterator[_Record]:
    """Records from a position at which one begins; after a fault the reader begins afresh with the next line."""
    csv.field_size_limit(MAX_LINE_BYTES)
    lines = _Lines(file, position)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        lines.begin()
        fields: list[str] = []
        fault = None
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fault = "malformed_csv", str(error)
        except _RecordTooLongError:
            limit = f"over {MAX_LINE_BYTES} bytes or {MAX_RECORD_LINES} lines"
            fault = "line_too_long", f"{limit}; a quote is open" if len(lines.taken) > 1 else limit
        yield _Record(fields, fault, lines.taken, lines.start, lines.position)


def _header(records: Iterator[_Record], info: ObjectInfo) -> list[str]:
    first = next(records, None)
    if first is not None and first.fault is not None:
        raise JobError(f"{info.uri}: its header is no CSV record ({first.fault[1]}); mend it, or set input.format")
    return first.fields if first is not None else []


def _check_header(header: list[str], info: ObjectInfo, spec: Input) -> None:
    shown = ", ".join(header)[:_SHOWN_CHARS].encode(errors="backslashreplace").decode()
    for column in spec.all_columns():
        if header.count(column) != 1:
            lack = "two columns" if column in header else "no column"
            raise JobError(f"{info.uri}: {lack} {column!r}; its header is: {shown}")


def _typed_columns(spec: Input) -> frozenset[str]:
    """Columns in which an empty field means null, since CSV has no other way to write it."""
    typed = {kept.column for kept in spec.keep.values() if kept.type != "string"}
    return frozenset(typed.union([spec.id] if spec.id else []).difference(spec.text_columns()))


def _rows(records: Iterator[_Record], stop: int, header: list[str], typed: frozenset[str]) -> Iterator[SourceRow]:
    """A record that is no row rejects each line that it took: one stray quote swallows many, and none may vanish."""
    row = 0
    for record in records:
        if record.start >= stop:
            return
        fault = record.fault
        if fault is None and not record.fields:  # a blank line
            continue
        if fault is None and len(record.fields) != len(header):
            fault = "malformed_csv", f"{len(record.fields)} fields, the header has {len(header)}"
        if fault is None:
            pairs = zip(header, record.fields, strict=True)
            yield SourceRow(row, {name: None if not text and name in typed else text for name, text in pairs}, None)
            row += 1
            continue
        count = f", {len(record.lines)} lines" if len(record.lines) > 1 else ""
        for line in record.lines:
            message = f"record at byte {record.start}{count}: {fault[1]}"
            yield SourceRow(row, None, reject("read", fault[0], message, line.rstrip(b"\r\n")))
            row += 1


source = CsvSource()
