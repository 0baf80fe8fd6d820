"""Arrow stream files of saved Hugging Face datasets: record batches are the units, found by their headers alone."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import pyarrow as pa

from pipeline.errors import JobError
from pipeline.job import Input
from pipeline.objects import ObjectInfo, Objects
from pipeline.rejects import Reject
from pipeline.sources import SourceRow
from pipeline.sources.arrow_rows import Paths, batch_values, column_paths, damage_named, with_leaves
from pipeline.splits import Piece, Unit

_KIND = "Arrow stream"
_CONTINUATION = 0xFFFFFFFF
_SCHEMA, _RECORD_BATCH = 1, 3
_SLICE_ROWS = 1_024


class ArrowStreamSource:
    def units(self, objects: Objects, info: ObjectInfo, name: str, index: int, spec: Input) -> Iterator[Unit]:
        if not info.uri.endswith(".arrow"):
            return  # state.json, which only names the files
        with objects.open(info) as file:
            column_paths(_schema(file, info), info, spec)
            for message in _messages(file, info):
                yield Unit(index, message.start, message.stop, message.rows, message.stop - message.start)

    def rows(self, objects: Objects, info: ObjectInfo, name: str, piece: Piece, spec: Input) -> Iterator[SourceRow]:
        with objects.open(info) as file:
            schema = _schema(file, info)
            paths = column_paths(schema, info, spec)
            row = 0
            with damage_named(info, _KIND):
                file.seek(piece.start)
                while file.tell() < piece.stop:
                    batch = pa.ipc.read_record_batch(pa.ipc.read_message(file), schema)
                    for values in _checked_values(batch, paths):
                        fault = values if isinstance(values, Reject) else None
                        yield SourceRow(row, None if isinstance(values, Reject) else values, fault)
                        row += 1


@dataclass(frozen=True, slots=True)
class _Message:
    """A record batch of the stream."""

    start: int
    stop: int
    rows: int


def _schema(file: IO[bytes], info: ObjectInfo) -> pa.Schema:
    with damage_named(info, _KIND):
        return pa.ipc.read_schema(file)


def _messages(file: IO[bytes], info: ObjectInfo) -> Iterator[_Message]:
    """The record batches of a stream, whose bodies are skipped. Raises JobError for a damaged or cut stream.

    Format: https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format
    """
    position = 0
    while True:
        file.seek(position)
        try:
            continuation, size = struct.unpack("<II", file.read(8))
            if continuation != _CONTINUATION:
                raise ValueError("no message header")
            if size == 0:  # the end-of-stream mark
                return
            kind, rows, body = _header(file.read(min(size, info.size_bytes)))
        except (struct.error, ValueError) as error:
            raise _damaged(info, f"byte {position}: {error}") from error
        stop = position + 8 + size + body
        if not position < stop <= info.size_bytes or rows < 0:
            raise _damaged(info, f"byte {position}: a message that ends outside the file")
        if kind == _RECORD_BATCH:
            yield _Message(position, stop, rows)
        elif kind != _SCHEMA:
            raise _damaged(info, f"byte {position}: a message of kind {kind}; `datasets` writes no dictionaries")
        position = stop


def _damaged(info: ObjectInfo, detail: str) -> JobError:
    return JobError(f"{info.uri}: not a readable {_KIND} ({detail}); save the dataset again with save_to_disk")


def _header(metadata: bytes) -> tuple[int, int, int]:
    """Kind, rows (of a record batch) and body bytes, from the flatbuffer of a message.

    Tables and fields: https://github.com/apache/arrow/blob/main/format/Message.fbs
    """
    (message,) = struct.unpack_from("<I", metadata)
    kind_at, header_at, body_at = (_field(metadata, message, number) for number in (1, 2, 3))
    if not kind_at or not header_at:
        raise ValueError("a message without a header")
    kind = metadata[kind_at]
    body = struct.unpack_from("<q", metadata, body_at)[0] if body_at else 0
    rows_at = _field(metadata, header_at + struct.unpack_from("<I", metadata, header_at)[0], 0)
    rows = struct.unpack_from("<q", metadata, rows_at)[0] if kind == _RECORD_BATCH and rows_at else 0
    return kind, rows, body


def _field(metadata: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer table lies; 0 for one that has its default."""
    if table < 0 or table + 4 > len(metadata):
        raise ValueError("a table outside the header")
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    if vtable < 0:
        raise ValueError("a table outside the header")
    (size,) = struct.unpack_from("<H", metadata, vtable)
    slot = 4 + 2 * number
    offset = struct.unpack_from("<H", metadata, vtable + slot)[0] if slot < size else 0
    found = table + offset if offset else 0
    if found >= len(metadata):
        raise ValueError("a field outside the header")
    return int(found)


def _checked_values(batch: pa.RecordBatch, paths: Paths) -> Iterator[dict[str, object] | Reject]:
    """A stream has no checksums: offsets that lead outside a buffer are found before anything follows them."""
    for name in {path[0] for path in paths.values()}:
        column = batch.column(name)
        column.view(with_leaves(column.type, _bytes)).validate(full=True)
    for start in range(0, batch.num_rows, _SLICE_ROWS):
        yield from batch_values(batch.slice(start, _SLICE_ROWS), paths)


def _bytes(kind: pa.DataType) -> pa.DataType:
    """Invalid UTF-8 is a fault of its row, not of the file: offsets are checked as those of bytes."""
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    return pa.binary() if pa.types.is_string(kind) else kind


source = ArrowStreamSource()
