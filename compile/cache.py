"""Which blobs are kept on the local disk: fetched once, verified by digest, evicted least recently used first.

A load gets a directory of hard links of its own, so evicting a blob never takes a file from a loading process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from compile.blobs import Blobs
from compile.errors import ArtifactError
from compile.model import file_digest

LOCK = ".lock"


class DiskCache:
    """Blobs of one store on the local disk, at most `max_bytes` of them after each load."""

    def __init__(self, blobs: Blobs, blobs_uri: str, cache_dir: Path, max_bytes: int) -> None:
        self._blobs = blobs
        self._blobs_uri = blobs_uri
        self._kept = cache_dir / "blobs"
        self._loads = cache_dir / "loads"
        self._max_bytes = max_bytes
        self._verified: dict[str, tuple[int, int, int]] = {}

    @contextlib.contextmanager
    def directory(self, files: Mapping[str, tuple[str, int]]) -> Iterator[Path]:
        """A directory that holds `files` (name, `/` for folders -> sha256, size in bytes) while the context lasts.

        Raises ArtifactError when the store has lost a blob or has other bytes under its digest.
        """
        self._kept.mkdir(parents=True, exist_ok=True)
        self._loads.mkdir(parents=True, exist_ok=True)
        lock, private = _private_directory(self._loads)
        try:
            for name, (sha256, size_bytes) in files.items():
                path = private / name
                path.parent.mkdir(parents=True, exist_ok=True)
                self._place(sha256, size_bytes, path)
            yield private
        finally:
            shutil.rmtree(private, ignore_errors=True)
            private.with_suffix(LOCK).unlink(missing_ok=True)
            os.close(lock)
            self._evict()

    def _place(self, sha256: str, size_bytes: int, path: Path) -> None:
        """Link a blob to `path`. A damaged copy is fetched again once: disks fail, and the store may have the truth."""
        kept = self._kept / sha256
        for _ in range(2):
            try:
                _link(kept, path)
            except FileNotFoundError:
                self._fetch(sha256, path)
            if self._is_intact(path, sha256, size_bytes):
                _touch(path)
                if not kept.exists():
                    with contextlib.suppress(FileExistsError):
                        _link(path, kept)
                return
            path.unlink()
            kept.unlink(missing_ok=True)
        raise ArtifactError(f"blob {sha256} in {self._blobs_uri} is damaged: its bytes have another digest")

    def _fetch(self, sha256: str, path: Path) -> None:
        try:
            self._blobs.download(f"{self._blobs_uri}/{sha256}", path)
        except FileNotFoundError:
            raise ArtifactError(f"blob {sha256} is missing in {self._blobs_uri}") from None

    def _is_intact(self, path: Path, sha256: str, size_bytes: int) -> bool:
        """Hash the file, unless this process has hashed the same unchanged inode before."""
        stat = path.stat()
        identity = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if self._verified.get(sha256) == identity:
            return True
        if stat.st_size != size_bytes or file_digest(path) != sha256:
            return False
        self._verified[sha256] = identity
        return True

    def _evict(self) -> None:
        """Remove directories of dead processes, then the least recently used blobs above the limit."""
        for lock_path in self._loads.glob(f"*{LOCK}"):
            _remove_if_dead(lock_path)
        found = []
        for path in self._kept.iterdir():
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                found.append((stat.st_atime_ns, path.name, stat.st_size, path))
        total = sum(size for _, _, size, _ in found)
        for _, _, size, path in sorted(found):
            if total <= self._max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size


def _link(source: Path, path: Path) -> None:
    """A hard link; a copy where the file system has none. Raises FileNotFoundError, FileExistsError."""
    try:
        os.link(source, path)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError:
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        shutil.copyfile(source, partial)
        partial.rename(path)


def _touch(path: Path) -> None:
    """Mark as used now: the access time only, since the modification time tells whether a file was verified."""
    stat = path.stat()
    os.utime(path, ns=(max(stat.st_atime_ns + 1, time.time_ns()), stat.st_mtime_ns))


def _private_directory(parent: Path) -> tuple[int, Path]:
    """A new directory and the descriptor of its lock, which the kernel drops when this process dies."""
    while True:
        lock, name = tempfile.mkstemp(suffix=LOCK, dir=parent)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Another process may have taken the file for a dead one's in the moment before it was locked.
        with contextlib.suppress(FileNotFoundError):
            if Path(name).stat().st_ino == os.fstat(lock).st_ino:
                private = Path(name).with_suffix("")
                private.mkdir()
                return lock, private
        os.close(lock)


def _remove_if_dead(lock_path: Path) -> None:
    """Remove a directory whose process has died: nobody holds its lock."""
    try:
        lock = os.open(lock_path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
        lock_path.unlink(missing_ok=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)
