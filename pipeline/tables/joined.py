"""The file of one table and night: a run's staged parts joined, in a nameless temporary file that no crash leaves."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from typing import IO, BinaryIO, cast

import pyarrow as pa

from pipeline.context import Context
from pipeline.parquet_files import read_table, write_joined
from pipeline.tables import StagedPart


@dataclass(frozen=True, slots=True)
class JoinedFile:
    """Open for reading until the body of `joined` ends."""

    file: BinaryIO
    size_bytes: int
    sha256: str


@contextmanager
def joined(
    context: Context, parts: list[StagedPart], convert: Callable[[pa.Table], pa.Table] | None = None
) -> Iterator[JoinedFile]:
    """The parts, in their order, as one Parquet file; a lone part that is not converted stays as it is.

    The disk must hold the file once. Raises FileNotFoundError for a part that is missing or damaged.
    """
    context.cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=context.cache_dir) as file:
        _fill(context, file, parts, convert)
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(0)
        sha256 = hashlib.file_digest(cast(BufferedReader, file), "sha256").hexdigest()
        yield JoinedFile(cast(BinaryIO, file), size_bytes, sha256)


def _fill(
    context: Context, file: IO[bytes], parts: list[StagedPart], convert: Callable[[pa.Table], pa.Table] | None
) -> None:
    if len(parts) == 1 and convert is None:
        file.write(read_part(context, parts[0]))
        return
    tables = (read_table(read_part(context, part)) for part in parts)
    write_joined(
        (convert(table) if convert else table for table in tables), cast(BinaryIO, file), context.job.input.split_rows
    )


def read_part(context: Context, part: StagedPart) -> bytes:
    """Raises FileNotFoundError for one that is missing or damaged."""
    data = context.objects.get(part.uri)
    if hashlib.sha256(data).hexdigest() != part.sha256:
        context.objects.delete(part.uri)  # parts are created once: a damaged one would stay
        raise FileNotFoundError(f"{part.uri} (damaged, removed)")
    return data
