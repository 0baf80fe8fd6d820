"""Compressed input by extension, as a stream: nothing is unpacked to disk."""

from __future__ import annotations

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

import zstandard

from pipeline.errors import JobError
from pipeline.objects import ObjectInfo, Objects

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError)
"""What reading a damaged or cut stream raises."""

_BUFFER_BYTES = 1 << 20
_CHUNK_BYTES = 4 << 10
"""Compressed bytes taken at once. A zstd block of 4 bytes can hold 128 KiB: even a bomb stays within 128 MiB."""


def is_compressed(uri: str) -> bool:
    return uri.lower().endswith((".gz", ".zst"))


def open_plain(objects: Objects, info: ObjectInfo, start: int = 0) -> IO[bytes]:
    """A buffered reader over the plain bytes of the pinned object, from byte `start` of them.

    Of a compressed object all that comes before is decompressed and dropped.
    """
    if not is_compressed(info.uri):
        return objects.open(info, start)
    packed = objects.open(info)
    gzipped = info.uri.lower().endswith(".gz")
    plain = io.BufferedReader(gzip.GzipFile(fileobj=packed) if gzipped else _ZstdReader(packed), _BUFFER_BYTES)
    with damage_named(info):
        while start and (dropped := plain.read(min(start, _BUFFER_BYTES))):
            start -= len(dropped)
    return plain


@contextlib.contextmanager
def damage_named(info: ObjectInfo) -> Iterator[None]:
    """Raises JobError for a compressed stream that is damaged or cut short."""
    try:
        yield
    except _DAMAGED as error:
        raise JobError(f"{info.uri}: damaged or cut short ({error}); mend or replace it") from error


class _ZstdReader(io.RawIOBase):
    """Frames one after the other. zstandard's own reader ends a stream that was cut short without an error."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._begun = False
        self._packed = b""
        self._plain = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        while not self._plain:
            if not self._more():
                return 0
        size = min(len(view), len(self._plain))
        view[:size] = self._plain[:size]
        self._plain = self._plain[size:]
        return size

    def _more(self) -> bool:
        """Decompress a little more; False at the end. Raises EOFError within a frame."""
        self._packed = self._packed or self._file.read(_CHUNK_BYTES)
        if not self._packed:
            if self._begun:
                raise EOFError("the file ends within a compressed frame")
            return False
        self._begun = True
        self._plain = memoryview(self._frame.decompress(self._packed))
        self._packed = b""
        if self._frame.eof:
            self._packed = self._frame.unused_data
            self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._begun = False
        return True

    def close(self) -> None:
        self._file.close()
        super().close()
