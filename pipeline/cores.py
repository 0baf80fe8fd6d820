"""Which core a worker has: leased by a lock that the kernel drops when its process dies, so no crash leaks one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_POLL_SECONDS = 0.2

_LIBRARIES = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "RAYON")
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in _LIBRARIES}
"""Environment of a worker: a second thread on a busy core makes both an order of magnitude slower."""


def lock_dir() -> Path:
    """LENGTHWISE_LOCK_DIR, or a folder per user on this host; locks mean nothing across hosts."""
    named = os.environ.get("LENGTHWISE_LOCK_DIR")
    return Path(named) if named else Path(tempfile.gettempdir()) / f"lengthwise-{os.getuid()}"


def available_cores() -> list[int]:
    """CPU cores that this process may run on."""
    return sorted(os.sched_getaffinity(0))


@contextmanager
def leased_core(cores: Sequence[int], say: Callable[[str], None]) -> Iterator[int]:
    """Lease a free core, waiting for one while all are taken, and run on it alone until the end of the body."""
    said = False
    while True:
        for core in cores:
            with try_lock(lock_dir() / "cores" / f"core-{core}.lock") as held:
                if held:
                    with _affinity({core}):
                        yield core
                    return
        if not said:
            say(f"all {len(cores)} cores are leased by other workers; waiting for one")
            said = True
        time.sleep(_POLL_SECONDS)


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


@contextmanager
def _affinity(cores: set[int]) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


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
