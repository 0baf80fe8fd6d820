"""JSONL and plain text input, read line by line so that one bad line is one reject; objects are cut anywhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pipeline.errors import JobError
from pipeline.job import Input
from pipeline.objects import ObjectInfo, Objects
from pipeline.rejects import Reject, reject
from pipeline.sources import SourceRow, physical_lines
from pipeline.sources.decompress import damage_named, is_compressed, open_plain
from pipeline.splits import Piece, Unit, byte_units

_BLOCK_BYTES = 64 << 10


class LineSource:
    def units(self, objects: Objects, info: ObjectInfo, name: str, index: int, spec: Input) -> Iterator[Unit]:
        if name == "text" and (spec.text != "text" or spec.pair or spec.id or spec.keep):
            raise JobError(
                f"{info.uri}: a text file has one column, text; set input.text: text, without pair, id, keep"
            )
        if is_compressed(info.uri):
            yield from _compressed_units(objects, info, index, spec)
        else:
            mean = _mean_line_bytes(objects, info)
            yield from byte_units(index, info.size_bytes, mean, spec.split_bytes, spec.split_rows)

    def rows(self, objects: Objects, info: ObjectInfo, name: str, piece: Piece, spec: Input) -> Iterator[SourceRow]:
        """A blank line of JSONL is no row and is not counted: a row's number does not depend on how lines are cut."""
        parse = _parse_text if name == "text" else _parse_json
        limit = physical_lines.MAX_LINE_BYTES
        lines = (line for line in _lines(objects, info, piece) if name == "text" or line.strip())
        for row, line in enumerate(lines):
            if len(line) > limit:
                yield SourceRow(row, None, reject("read", "line_too_long", f"over {limit} bytes", line))
            else:
                parsed = parse(line)
                fault = parsed if isinstance(parsed, Reject) else None
                yield SourceRow(row, None if isinstance(parsed, Reject) else parsed, fault)


def _compressed_units(objects: Objects, info: ObjectInfo, index: int, spec: Input) -> Iterator[Unit]:
    """Read once to find out what it holds, which its size does not say; ranges of plain bytes, and lines counted."""
    start = stop = rows = 0
    with open_plain(objects, info) as file, damage_named(info):
        while block := file.read(_BLOCK_BYTES):
            stop += len(block)
            rows += block.count(b"\n")
            if stop - start >= spec.split_bytes or rows >= spec.split_rows:
                yield Unit(index, start, stop, rows + 1, stop - start)
                start, rows = stop, 0
    if stop > start:
        yield Unit(index, start, stop, rows + 1, stop - start)


def _mean_line_bytes(objects: Objects, info: ObjectInfo) -> float:
    """Of an uncompressed object, from samples of its beginning, middle and end."""
    starts = {0, max(0, info.size_bytes // 2 - _BLOCK_BYTES // 2), max(0, info.size_bytes - _BLOCK_BYTES)}
    if info.size_bytes <= _BLOCK_BYTES:
        starts = {0}
    sampled = newlines = 0
    for start in starts:
        block = objects.get(info.uri, start, start + _BLOCK_BYTES, info.etag, info.stamp)
        sampled += len(block)
        newlines += block.count(b"\n")
    return sampled / max(1, newlines)


def _lines(objects: Objects, info: ObjectInfo, piece: Piece) -> Iterator[bytes]:
    """Lines that start within the piece, without their ends; one that is too long is cut just over the limit."""
    with open_plain(objects, info, max(0, piece.start - 1)) as file, damage_named(info):
        lines = physical_lines.newline_lines(file)
        position = piece.start
        if piece.start:  # a line that starts before the piece belongs to the one before; its end is skipped
            position += next(lines, (1, b""))[0] - 1
        for size, line in lines:
            if position >= piece.stop:
                return
            yield line.removeprefix(physical_lines.BOM) if position == 0 else line
            position += size


def _parse_json(line: bytes) -> dict[str, Any] | Reject:
    try:
        values = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return reject("read", "invalid_utf8", f"byte {error.start} of the line: {error.reason}", line)
    except json.JSONDecodeError as error:
        return reject("read", "malformed_json", str(error)[:500], line)
    except RecursionError:
        return reject("read", "malformed_json", "values are nested too deeply", line)
    except ValueError:  # Python's limit, of which its message speaks to programmers
        return reject("read", "malformed_json", f"a number has more than {sys.get_int_max_str_digits()} digits", line)
    if not isinstance(values, dict):
        return reject("read", "not_an_object", f"the line is a JSON {type(values).__name__}", line)
    return values


def _parse_text(line: bytes) -> dict[str, Any] | Reject:
    try:
        return {"text": line.decode("utf-8")}
    except UnicodeDecodeError as error:
        return reject("read", "invalid_utf8", f"byte {error.start} of the line: {error.reason}", line)


source = LineSource()
