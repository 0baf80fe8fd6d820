"""JSONL and plain text input, read line by line so that one bad line is one reject; uncompressed objects are cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pipeline.errors import JobError
from pipeline.job import Input
from pipeline.objects import ObjectInfo, Objects
from pipeline.rejects import Reject, reject
from pipeline.sources import SourceRow
from pipeline.sources.decompress import DAMAGED, is_compressed, open_decompressed
from pipeline.splits import Piece, Unit, byte_units

MAX_LINE_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"


class LineSource:
    def units(self, objects: Objects, info: ObjectInfo, name: str, index: int, spec: Input) -> Iterator[Unit]:
        if name == "text" and (spec.text != "text" or spec.pair or spec.id or spec.keep):
            raise JobError(
                f"{info.uri}: a text file has one column, text; set input.text: text, without pair, id, keep"
            )
        if is_compressed(info.uri):
            yield Unit(index, 0, info.size_bytes, 0, info.size_bytes)
        else:
            yield from byte_units(index, info.size_bytes, spec.split_bytes)

    def rows(self, objects: Objects, info: ObjectInfo, name: str, piece: Piece, spec: Input) -> Iterator[SourceRow]:
        """A blank line of JSONL is no row and is not counted: a row's number does not depend on how lines are cut."""
        parse = _parse_json if name == "jsonl" else _parse_text
        lines = (line for line in _lines(objects, info, piece) if name == "text" or line.strip())
        for row, line in enumerate(lines):
            if len(line) > MAX_LINE_BYTES:
                yield SourceRow(row, None, reject("read", "line_too_long", f"over {MAX_LINE_BYTES} bytes", line))
            else:
                parsed = parse(line)
                fault = parsed if isinstance(parsed, Reject) else None
                yield SourceRow(row, None if isinstance(parsed, Reject) else parsed, fault)


def _lines(objects: Objects, info: ObjectInfo, piece: Piece) -> Iterator[bytes]:
    """Lines that start within the piece, without their ends; one that is too long is cut just over the limit."""
    if is_compressed(info.uri):
        with open_decompressed(objects, info) as file:
            try:
                for number, (_, line) in enumerate(_read_lines(file)):
                    yield line if number else line.removeprefix(_BOM)
            except DAMAGED as error:
                raise JobError(f"{info.uri}: damaged or cut short ({error}); mend or replace it") from error
        return
    with objects.open(info, max(0, piece.start - 1)) as file:
        position = piece.start
        if piece.start:  # a line that starts before the piece belongs to the one before; its end is skipped
            position += sum(size for size, _ in _read_one(file)) - 1
        for size, line in _read_lines(file):
            if position >= piece.stop:
                return
            yield line.removeprefix(_BOM) if position == 0 else line
            position += size


def _read_lines(file: Any) -> Iterator[tuple[int, bytes]]:
    while True:
        found = list(_read_one(file))
        if not found:
            return
        yield found[0]


def _read_one(file: Any) -> Iterator[tuple[int, bytes]]:
    """At most one (bytes consumed, line); bounded memory even for a line without an end."""
    line = file.readline(MAX_LINE_BYTES + 1)
    size = len(line)
    if not size:
        return
    tail = line
    while len(tail) > MAX_LINE_BYTES and not tail.endswith(b"\n"):
        tail = file.readline(MAX_LINE_BYTES + 1)
        size += len(tail)
    yield size, line.rstrip(b"\n").removesuffix(b"\r")


def _parse_json(line: bytes) -> dict[str, Any] | Reject:
    try:
        values = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return reject("read", "invalid_utf8", f"byte {error.start} of the line: {error.reason}", line)
    except (ValueError, RecursionError) as error:
        return reject("read", "malformed_json", str(error)[:500], line)
    if not isinstance(values, dict):
        return reject("read", "not_an_object", f"the line is a JSON {type(values).__name__}", line)
    return values


def _parse_text(line: bytes) -> dict[str, Any] | Reject:
    try:
        return {"text": line.decode("utf-8")}
    except UnicodeDecodeError as error:
        return reject("read", "invalid_utf8", f"byte {error.start} of the line: {error.reason}", line)


source = LineSource()
