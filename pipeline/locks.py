"""Locks between the processes of one host: the kernel drops one when its last holder dies, so no crash leaks it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def lock_dir() -> Path:
    """LENGTHWISE_LOCK_DIR, or a folder per user on this host; locks mean nothing across hosts."""
    named = os.environ.get("LENGTHWISE_LOCK_DIR")
    return Path(named) if named else Path(tempfile.gettempdir()) / f"lengthwise-{os.getuid()}"


@contextmanager
def try_lock(path: Path, wait: bool = False) -> Iterator[bool]:
    """Hold an exclusive lock during the body; False at once when another process has it, unless `wait`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def sweep_locks(fingerprint: str | None, before: float) -> None:
    """Remove this host's shard locks of a finished run, and all that nobody holds and that are older than `before`.

    Whoever waits for a removed one computes a shard twice at worst; its result is created once all the same.
    """
    for path in (lock_dir() / "shards").glob("*/*.lock"):
        with contextlib.suppress(OSError):  # another process sweeps, too
            if path.parent.name == fingerprint or path.stat().st_mtime < before:
                with try_lock(path) as held:
                    if held:
                        path.unlink()
    for folder in (lock_dir() / "shards").glob("*/"):
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()
