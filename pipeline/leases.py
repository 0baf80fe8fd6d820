"""Leases of cores: one holder each, a fair queue, free at once when the last process of the holder dies.

A lease is a lock (flock) on one file per core, taken while a short lock on the whole folder is held, so that several
cores are taken together or not at all. Files are handed down to the processes that a worker starts on its cores, and
over to the one it becomes when it starts anew: a lease lives exactly as long as somebody may be using the cores.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pipeline.core_sharing import Allocation, Group, Holding, Waiting, allocate
from pipeline.cores import CorePool, Kind, copies_here, core_pool, on_neuron
from pipeline.locks import lock_dir, try_lock
from pipeline.neuron_devices import COUNT, VISIBLE, core_range

if TYPE_CHECKING:
    from pipeline.job import Job

_POLL_SECONDS = 0.2
_TURN_S = 60.0
KEPT_VARIABLE = "LENGTHWISE_LEASE"
"""Lease of a process that starts anew with its cores, as JSON."""


@dataclass(slots=True)
class Lease:
    """Cores of this process and of those it hands `descriptors` down to."""

    kind: Kind
    holding: Holding
    files: tuple[IO[bytes], ...]
    kept: bool = False
    """Not given back at the end of the body: the process starts anew with it."""

    @property
    def cores(self) -> Group:
        return self.holding.cores

    @property
    def core(self) -> int:
        """The first one, which names the worker in events."""
        return self.cores[0]

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Open files that are the lease; whoever inherits one holds it, too."""
        return tuple(file.fileno() for file in self.files)

    @property
    def bound(self) -> bool:
        """Whether a process that has used such a core keeps others off it until it ends (Neuron Runtime)."""
        return self.kind == "neuron"

    def wanted_by(self) -> str | None:
        """The waiting job that should have these cores; the others count on it that they are given back soon."""
        if time.monotonic() - self.holding.since < self.holding.turn_s:
            return None
        with _at_table(self.kind) as folder:
            job = _allocation(folder).asked.get(self.holding)
            if job is not None:
                self.holding = replace(self.holding, leaving=True)
                self._describe()
        return job

    def _describe(self) -> None:
        """Say in the locked files who holds them: for the queue, and for people."""
        for file in self.files:
            with contextlib.suppress(OSError):  # on a full disk
                file.truncate(0)
                file.write(json.dumps(asdict(self.holding)).encode())  # opened for appending: at the new end
                file.flush()

    def to_json(self) -> str:
        return json.dumps({"kind": self.kind, "holding": asdict(self.holding), "descriptors": self.descriptors})


@contextmanager
def leased(pool: CorePool, job: str, say: Callable[[str], None], turn_s: float | None = None) -> Iterator[Lease]:
    """Cores of the pool for the body, after waiting for the job's turn; only this process, and who inherits, has them.

    The body runs with them alone: CPU affinity, or the variables that the Neuron Runtime reads when it is loaded.
    `turn_s` is how long the lease is kept although another job waits; default LENGTHWISE_TURN_S, else 60.
    """
    turn = float(os.environ.get("LENGTHWISE_TURN_S", _TURN_S)) if turn_s is None else turn_s
    lease = _kept_lease(pool.kind) or _queue(pool, job, say, turn)
    try:
        with _affinity(set(lease.cores)) if pool.kind == "cpu" else _visible(lease.cores):
            yield lease
    finally:
        if not lease.kept:
            for file in lease.files:
                file.close()


@contextmanager
def device_cores(job: Job, say: Callable[[str], None]) -> Iterator[None]:
    """NeuronCores of its own for whoever compiles for them, proves and times what it made; where there are none, or the
    job's target needs none, nothing."""
    if not on_neuron(job) or copies_here(job) is None:
        yield
        return
    with leased(core_pool(job), job.name, say):
        yield


def leases(kind: Kind) -> tuple[list[Holding], list[Waiting]]:
    """Who holds cores and who waits for some, now."""
    if not _folder(kind).is_dir():
        return [], []
    with _at_table(kind) as folder:
        return _holding(folder), _waiting(folder)


def _folder(kind: Kind) -> Path:
    return lock_dir() / ("cores" if kind == "cpu" else "neuron-cores")


@contextmanager
def _at_table(kind: Kind) -> Iterator[Path]:
    """The folder of these leases, in which only one process at a time looks and takes."""
    folder = _folder(kind)
    with try_lock(folder / "table.lock", wait=True):
        yield folder


def _queue(pool: CorePool, job: str, say: Callable[[str], None], turn_s: float) -> Lease:
    said = False
    with _ticket(pool, job) as mine:
        while True:
            with _at_table(pool.kind) as folder:
                lease = _take(pool, folder, mine, turn_s)
            if lease is not None:
                return lease
            if not said:
                beside = "" if len(pool.groups[0]) == 1 else f" for {len(pool.groups[0])} neighbours"
                say(f"all {pool.name} are leased by other workers; waiting for one{beside}")
                said = True
            time.sleep(_POLL_SECONDS)


@contextmanager
def _ticket(pool: CorePool, job: str) -> Iterator[Waiting]:
    """A place in the queue: a locked file, worth nothing once its process is dead."""
    mine = Waiting(uuid.uuid4().hex, job, time.monotonic(), pool.groups, os.getpid())
    path = _folder(pool.kind) / "queue" / f"{mine.name}.json"
    with _at_table(pool.kind):
        path.parent.mkdir(exist_ok=True)
        file = path.open("xb")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(json.dumps(asdict(mine)).encode())
        file.flush()
    try:
        yield mine
    finally:
        path.unlink(missing_ok=True)
        file.close()


def _take(pool: CorePool, folder: Path, mine: Waiting, turn_s: float) -> Lease | None:
    """At the table: the cores that are this worker's turn, None while it has to wait."""
    holding = _holding(folder)
    busy = {core for holder in holding for core in holder.cores}
    if all(busy & set(group) for group in pool.groups):
        return None  # spares the many that wait from reading the queue
    cores = allocate(_waiting(folder), holding, time.monotonic()).granted.get(mine.name)
    if cores is None:
        return None
    with contextlib.ExitStack() as stack:
        files = tuple(stack.enter_context(_core_file(folder, core).open("ab")) for core in cores)
        for file in files:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free: who else would take it is not at the table
        lease = Lease(pool.kind, Holding(mine.job, cores, time.monotonic(), turn_s, pid=mine.pid), files)
        lease._describe()
        (folder / "queue" / f"{mine.name}.json").unlink()
        stack.pop_all()
    return lease


def _core_file(folder: Path, core: int) -> Path:
    return folder / f"core-{core}.lock"


def _allocation(folder: Path) -> Allocation:
    return allocate(_waiting(folder), _holding(folder), time.monotonic())


def _holding(folder: Path) -> list[Holding]:
    """Whose cores are locked; what the files of free ones say is old."""
    found = set()
    for path, told in _locked(folder.glob("core-*.lock")):
        core = int(path.stem.removeprefix("core-"))
        # Where a full disk took the text, the lock holds all the same.
        found.add(_from_json(told) if told else Holding("", (core,), since=0.0, turn_s=math.inf))
    return sorted(found, key=lambda holding: holding.cores)


def _from_json(told: dict[str, Any]) -> Holding:
    return Holding(**told | {"cores": tuple(told["cores"])})


def _waiting(folder: Path) -> list[Waiting]:
    """The queue, without the tickets of the dead, which are removed."""
    return [
        Waiting(**told | {"groups": tuple(map(tuple, told["groups"]))})
        for _, told in _locked((folder / "queue").glob("*.json"), remove=True)
        if told
    ]


def _locked(paths: Iterator[Path], remove: bool = False) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Those of the files that somebody has locked, and what they say; `remove` the others."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                told = None
                with contextlib.suppress(ValueError):
                    told = json.loads(file.read())
                yield path, told
            else:
                if remove:
                    path.unlink(missing_ok=True)


def _kept_lease(kind: Kind) -> Lease | None:
    """The lease that this process had before it started anew; its variable is not passed on."""
    kept = os.environ.pop(KEPT_VARIABLE, None)
    if kept is None:
        return None
    told = json.loads(kept)
    assert told["kind"] == kind, kept
    for descriptor in told["descriptors"]:
        os.set_inheritable(descriptor, False)
    files = tuple(os.fdopen(descriptor, "ab") for descriptor in told["descriptors"])
    return Lease(kind, _from_json(told["holding"]), files)


@contextmanager
def _affinity(cores: set[int]) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _visible(cores: Group) -> Iterator[None]:
    """What the Neuron Runtime and optimum-neuron read; the latter knows one core or one range, no list."""
    wanted = {VISIBLE: core_range(cores), COUNT: str(len(cores))}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
