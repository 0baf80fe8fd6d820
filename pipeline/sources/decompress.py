"""Compressed input by extension, as a stream: nothing is unpacked to disk."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import IO

import zstandard

from pipeline.objects import ObjectInfo, Objects

DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError)
"""What reading a damaged or cut stream raises."""


def is_compressed(uri: str) -> bool:
    return uri.lower().endswith((".gz", ".zst"))


def open_decompressed(objects: Objects, info: ObjectInfo) -> IO[bytes]:
    """A buffered reader over the plain bytes of the pinned object."""
    file = objects.open(info)
    if info.uri.lower().endswith(".gz"):
        return io.BufferedReader(gzip.GzipFile(fileobj=file), 1 << 20)
    if info.uri.lower().endswith(".zst"):
        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True), 1 << 20)
    return file
