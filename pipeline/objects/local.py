"""Objects on a local file system: hidden temporary files, then link (create once) or rename (replace)."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import BinaryIO

from pipeline.errors import StorageError
from pipeline.objects import ObjectInfo

TEMPORARY_PREFIX = ".lengthwise-tmp-"
_LOCK = f"{TEMPORARY_PREFIX}lock-"
_LOCK_SUFFIX = ".lock"
"""DuckDB's and Python's globs match hidden names too: `*.parquet` must not find the lock of a Parquet file."""
_SETTLED_NS = 2_000_000_000
"""Clocks of file systems tick coarsely: a file written less than this before may be written again at the same time."""


class LocalObjects:
    """The ETag of a local file is the digest of its content, so that touching or restoring a file changes nothing.

    The stamp is its inode, size and times, so that a pinned file is read for its digest once, not by every reader.
    """

    def __init__(self) -> None:
        self._etags: dict[tuple[str, str], str] = {}

    def sizes(self, prefix: str) -> dict[str, int]:
        found = {path: status.st_size for path, status in _files(prefix) if TEMPORARY_PREFIX not in path}
        return dict(sorted(found.items()))

    def list_info(self, prefix: str, wanted: Callable[[str], bool]) -> list[ObjectInfo]:
        infos = []
        for path in self.sizes(prefix):
            if wanted(path):
                with contextlib.suppress(FileNotFoundError):
                    infos.append(self.head(path))
        return infos

    def head(self, uri: str) -> ObjectInfo:
        with _translated(uri):
            if os.path.isdir(uri):
                raise FileNotFoundError(uri)
            with open(uri, "rb") as file:
                status = os.fstat(file.fileno())
                settled = time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NS
                return ObjectInfo(uri, status.st_size, self._etag(uri, file), _stamp(status) if settled else "")

    def exists(self, uri: str) -> bool:
        return os.path.isfile(uri)

    def get(self, uri: str, start: int, stop: int | None, etag: str | None, stamp: str) -> bytes:
        try:
            with _translated(uri), open(uri, "rb") as file:
                unread = stamp and stamp == _stamp(os.fstat(file.fileno()))
                if etag is not None and not unread and self._etag(uri, file) != etag:
                    raise changed_error(uri)
                file.seek(start)
                return file.read() if stop is None else file.read(stop - start)
        except FileNotFoundError as error:
            if etag is None:
                raise
            raise changed_error(uri, "is gone") from error

    def _etag(self, uri: str, file: BufferedReader) -> str:
        """Of the opened file, not of the path: another may have taken its name since."""
        version = (uri, _stamp(os.fstat(file.fileno())))
        if version not in self._etags:
            self._etags[version] = _digest(file)
        return self._etags[version]

    def put(self, uri: str, data: bytes) -> None:
        with _translated(uri), _temporary(uri) as temporary:
            _write(temporary, data)
            os.replace(temporary, uri)

    def put_new(self, uri: str, data: bytes) -> bool:
        with _translated(uri), _temporary(uri) as temporary:
            _write(temporary, data)
            return _link(temporary, uri)

    def put_if(self, uri: str, data: bytes, etag: str | None) -> bool:
        return self.put_file_if(uri, io.BytesIO(data), etag)

    def put_file_if(self, uri: str, file: BinaryIO, etag: str | None) -> bool:
        with _translated(uri), _temporary(uri) as temporary:
            with open(temporary, "wb") as copy:
                shutil.copyfileobj(file, copy)
                copy.flush()
                os.fsync(copy.fileno())
            if etag is None:
                return _link(temporary, uri)
            with _locked(uri):
                try:
                    with open(uri, "rb") as present:
                        same = _digest(present) == etag
                except FileNotFoundError:
                    return False
                if same:
                    os.replace(temporary, uri)
                return same

    def upload_new(self, path: Path, uri: str) -> bool:
        with _translated(uri), _temporary(uri) as temporary:
            shutil.copyfile(path, temporary)
            return _link(temporary, uri)

    def download(self, uri: str, path: Path) -> None:
        self.copy(uri, str(path))

    def copy(self, source: str, destination: str) -> None:
        with _translated(destination), _temporary(destination) as temporary:
            shutil.copyfile(source, temporary)
            os.replace(temporary, destination)

    def delete(self, uri: str) -> None:
        with _translated(uri), contextlib.suppress(FileNotFoundError):
            os.unlink(uri)

    def list_modified(self, prefix: str) -> dict[str, float]:
        return {path: status.st_mtime for path, status in _files(prefix) if TEMPORARY_PREFIX not in path}

    def discard_unfinished(self, prefix: str, before: float) -> int:
        left = [path for path, status in _files(prefix) if TEMPORARY_PREFIX in path and status.st_mtime < before]
        for path in left:
            if _LOCK not in path:
                self.delete(path)
                continue
            with _locked(
                path.replace(_LOCK, "").removesuffix(_LOCK_SUFFIX)
            ):  # nobody holds it now; who waits for it takes a new one
                self.delete(path)
        return len(left)


def _files(prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    """Regular files whose path starts with the prefix, temporary ones included."""
    folder = prefix.rpartition("/")[0] or ("/" if prefix.startswith("/") else ".")
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            if path.startswith(prefix):
                with contextlib.suppress(FileNotFoundError):  # another process removed it meanwhile
                    status = os.stat(path)
                    if stat.S_ISREG(status.st_mode):
                        yield path, status


def _stamp(status: os.stat_result) -> str:
    """Two files of one size can have one time, but not one inode."""
    return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"


def _digest(file: BufferedReader) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def changed_error(uri: str, what: str = "changed") -> StorageError:
    return StorageError(f"{uri} {what} since the run pinned it; run again to take a new snapshot")


@contextlib.contextmanager
def _translated(uri: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(
            f"{uri}: {error.strerror or error}; check the path, its permissions and the space"
        ) from error


@contextlib.contextmanager
def _temporary(uri: str) -> Iterator[str]:
    folder = os.path.dirname(uri) or "."
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    try:
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


@contextlib.contextmanager
def _locked(uri: str) -> Iterator[None]:
    """Compare-and-swap of a file needs a lock; it lies beside the file under a hidden name."""
    path = os.path.join(os.path.dirname(uri), f"{_LOCK}{os.path.basename(uri)}{_LOCK_SUFFIX}")
    while True:
        with open(path, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(file, path):  # a sweep may have removed it while we waited: then it guards nothing
                yield
                return


def _is_at(file: BufferedIOBase, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _link(temporary: str, uri: str) -> bool:
    try:
        os.link(temporary, uri)
    except FileExistsError:
        return False
    return True
