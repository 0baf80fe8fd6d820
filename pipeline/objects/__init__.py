"""Objects by URI: one small interface over S3 and local paths. Every write is atomic, and `put_new` creates once."""

from __future__ import annotations

import io
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from pipeline.errors import StorageError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


_COPIED_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What pins an object: a reader that asks for this ETag gets these bytes or an error."""

    uri: str
    size_bytes: int
    etag: str
    stamp: str = field(default="", compare=False)
    """How the store tells without reading that this is still that version; it identifies nothing by itself."""


def _any(uri: str) -> bool:
    return True


class Backend(Protocol):
    """One kind of object store. Missing objects raise FileNotFoundError, everything else StorageError."""

    def sizes(self, prefix: str) -> dict[str, int]: ...
    def list_info(self, prefix: str, wanted: Callable[[str], bool]) -> list[ObjectInfo]: ...
    def head(self, uri: str) -> ObjectInfo: ...
    def exists(self, uri: str) -> bool: ...
    def get(self, uri: str, start: int, stop: int | None, etag: str | None, stamp: str) -> bytes: ...
    def put(self, uri: str, data: bytes) -> None: ...
    def put_new(self, uri: str, data: bytes) -> bool: ...
    def put_if(self, uri: str, data: bytes, etag: str | None) -> bool: ...
    def put_file_if(self, uri: str, file: BinaryIO, etag: str | None) -> bool: ...
    def upload_new(self, path: Path, uri: str) -> bool: ...
    def download(self, uri: str, path: Path) -> None: ...
    def copy(self, source: str, destination: str) -> None: ...
    def delete(self, uri: str) -> None: ...
    def list_modified(self, prefix: str) -> dict[str, float]: ...
    def discard_unfinished(self, prefix: str, before: float) -> int: ...


class Objects:
    """Routes each URI to its backend; backends are made on first use, so a local run never imports boto3."""

    def __init__(self) -> None:
        self._backends: dict[str, Backend] = {}

    def _backend(self, uri: str) -> Backend:
        scheme = uri.partition("://")[0] if "://" in uri else ""
        if scheme not in self._backends:
            self._backends[scheme] = _make_backend(scheme, uri)
        return self._backends[scheme]

    def sizes(self, prefix: str) -> dict[str, int]:
        """URI -> bytes of every object whose URI starts with `prefix`, by URI; temporary objects are left out."""
        return self._backend(prefix).sizes(prefix)

    def list_info(self, prefix: str, wanted: Callable[[str], bool] = _any) -> list[ObjectInfo]:
        """The same with ETags, of the wanted URIs only: a local store reads each object for its ETag."""
        return self._backend(prefix).list_info(prefix, wanted)

    def list(self, prefix: str) -> list[str]:
        return list(self.sizes(prefix))

    def head(self, uri: str) -> ObjectInfo:
        return self._backend(uri).head(uri)

    def exists(self, uri: str) -> bool:
        return self._backend(uri).exists(uri)

    def get(self, uri: str, start: int = 0, stop: int | None = None, etag: str | None = None, stamp: str = "") -> bytes:
        """Bytes [start, stop). With `etag`, an object that has changed or gone since raises StorageError.

        With the `stamp` that came with the ETag, a local store need not read the whole object to tell.
        """
        if stop is not None and stop <= start:
            return b""
        return self._backend(uri).get(uri, start, stop, etag, stamp)

    def put(self, uri: str, data: bytes) -> None:
        self._backend(uri).put(uri, data)

    def put_new(self, uri: str, data: bytes) -> bool:
        """Create once: False when the object existed, which is then left as it is."""
        return self._backend(uri).put_new(uri, data)

    def put_if(self, uri: str, data: bytes, etag: str | None) -> bool:
        """Compare and swap: replace only the version `etag` (None: only when absent). False when another came first."""
        return self._backend(uri).put_if(uri, data, etag)

    def put_file_if(self, uri: str, file: BinaryIO, etag: str | None) -> bool:
        """As `put_if`, with the whole content of a seekable file of any size; it appears at once, never in pieces."""
        file.seek(0)
        return self._backend(uri).put_file_if(uri, file, etag)

    def upload_new(self, path: Path, uri: str) -> bool:
        return self._backend(uri).upload_new(path, uri)

    def download(self, uri: str, path: Path) -> None:
        with _writing(path):
            self._backend(uri).download(uri, path)

    def download_pinned(self, info: ObjectInfo, path: Path) -> None:
        """As `download`, of the version that was listed. Raises StorageError when it was replaced since."""
        temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
        with _writing(path):
            try:
                with self.open(info) as source, temporary.open("wb") as file:
                    shutil.copyfileobj(source, file, _COPIED_BYTES)
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)

    def copy(self, source: str, destination: str) -> None:
        """Atomic copy within one store."""
        self._backend(destination).copy(source, destination)

    def delete(self, uri: str) -> None:
        self._backend(uri).delete(uri)

    def list_modified(self, prefix: str) -> dict[str, float]:
        """URI -> when it was last written, in epoch seconds of the store's clock."""
        return self._backend(prefix).list_modified(prefix)

    def discard_unfinished(self, prefix: str, before: float) -> int:
        """Remove what writes that never ended left under a prefix, if they began before that epoch second: how many."""
        return self._backend(prefix).discard_unfinished(prefix, before)

    def open(self, info: ObjectInfo, start: int = 0) -> io.BufferedReader[RangeReader]:
        """A seekable reader over the pinned version, in ranged requests of 4 MiB; nothing is kept beyond the buffer."""
        reader = io.BufferedReader(RangeReader(self, info), buffer_size=4 << 20)
        reader.seek(start)
        return reader


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Make the folder; errors of the local disk as StorageError, which those of a store are already."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written: {error.strerror or error}; check the folder, its permissions and the space"
        ) from error


class RangeReader(io.RawIOBase):
    """A seekable raw file over ranged GETs of one pinned object: each request is retried by the client by itself."""

    def __init__(self, objects: Objects, info: ObjectInfo) -> None:
        super().__init__()
        self._objects = objects
        self._info = info
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._info.size_bytes}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        stop = min(self._position + len(view), self._info.size_bytes)
        data = self._objects.get(self._info.uri, self._position, stop, self._info.etag, self._info.stamp)
        if len(data) != max(0, stop - self._position):
            raise StorageError(f"{self._info.uri}: short read at byte {self._position}; run again")
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def readall(self) -> bytes:
        """The rest in one request; the inherited one asks for 8 KiB at a time."""
        buffer = bytearray(max(0, self._info.size_bytes - self._position))
        self.readinto(buffer)
        return bytes(buffer)


def _make_backend(scheme: str, uri: str) -> Backend:
    if scheme == "s3":
        from pipeline.objects.s3 import S3Objects

        return S3Objects()
    if scheme == "":
        from pipeline.objects.local import LocalObjects

        return LocalObjects()
    raise StorageError(f"{uri}: unknown scheme {scheme!r}; use s3://bucket/key or a plain local path")
