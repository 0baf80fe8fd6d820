"""A core has one holder, waits for one when all are taken, and is free at once after its holder was killed."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from pipeline.core_sharing import Group
from pipeline.cores import ONE_THREAD, CorePool, available_cores
from pipeline.leases import leased, leases
from pipeline.locks import lock_dir, try_lock
from pipeline.neuron_devices import COUNT, VISIBLE

SPAWN = multiprocessing.get_context("spawn")
HOLD = """
import json, os, sys
from pipeline.cores import CorePool
from pipeline.leases import leased
kind, job, groups = json.loads(sys.argv[1])
say = lambda line: print(line, flush=True)
with leased(CorePool(kind, tuple(map(tuple, groups))), job, say, turn_s=0) as lease:
    shown = os.environ.get("NEURON_RT_VISIBLE_CORES"), os.environ.get("NEURON_RT_NUM_CORES")
    print(json.dumps([lease.cores, *shown]), flush=True)
    for line in sys.stdin:
        print(json.dumps(lease.wanted_by()), flush=True)
"""
"""Holds cores until its input ends; asked by a line, it says which job should have them instead."""


def singles(*cores: int) -> CorePool:
    return CorePool("cpu", tuple((core,) for core in cores))


def neuron(*groups: Group) -> CorePool:
    return CorePool("neuron", groups)


@pytest.fixture(autouse=True)
def lock_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LENGTHWISE_LOCK_DIR", str(tmp_path / "locks"))
    return tmp_path / "locks"


class Worker:
    """A process that holds, or waits for, cores of a pool."""

    def __init__(self, pool: CorePool, job: str) -> None:
        argv = [sys.executable, "-c", HOLD, json.dumps([pool.kind, job, pool.groups])]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def has(self) -> tuple[list[int], str | None, str | None]:
        """Cores, and the two variables of the runtime."""
        cores, visible, count = json.loads(self.says())
        return cores, visible, count

    def wanted_by(self) -> str | None:
        assert self.process.stdin is not None
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        job: str | None = json.loads(self.says())
        return job

    def ends(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0

    def killed(self) -> None:
        self.process.kill()
        self.process.wait(60)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@contextlib.contextmanager
def worker(pool: CorePool, job: str = "a") -> Iterator[Worker]:
    started = Worker(pool, job)
    try:
        yield started
    finally:
        started.killed()


@contextlib.contextmanager
def holder(*cores: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that has leased one of the cores, and which one."""
    with worker(singles(*cores)) as started:
        yield started.process, started.has()[0][0]


def lease_now(pool: CorePool, job: str = "a") -> Group | None:
    """The cores that are leased at the first attempt, None when it would wait."""

    class WouldWaitError(Exception):
        pass

    def refuse(line: str) -> None:
        raise WouldWaitError(line)

    try:
        with leased(pool, job, refuse) as lease:
            return lease.cores
    except WouldWaitError:
        return None


def test_a_core_is_free_at_once_after_its_holder_was_killed() -> None:
    core = available_cores()[0]
    for _ in range(3):
        with holder(core) as (process, held):
            assert held == core
            assert lease_now(singles(core)) is None
            process.kill()
            process.wait(60)
            assert lease_now(singles(core)) == (core,)


def test_the_next_free_core_is_taken_and_none_twice() -> None:
    first, *others = available_cores()
    second = others[0] if others else first
    if first == second:  # a machine of one core has none to go on with
        assert lease_now(singles(first)) == (first,)
        return
    with holder(first, second) as (_, one), holder(first, second) as (_, two):
        assert {one, two} == {first, second}
        assert lease_now(singles(first, second)) is None


def test_a_worker_runs_on_its_core_alone_and_gets_the_others_back() -> None:
    before = os.sched_getaffinity(0)
    core = available_cores()[-1]
    with leased(singles(core), "a", lambda _: None) as lease:
        assert lease.cores == (core,)
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == before
    with pytest.raises(RuntimeError, match="in the body"), leased(singles(core), "a", lambda _: None):
        raise RuntimeError("in the body")
    assert os.sched_getaffinity(0) == before
    assert lease_now(singles(core)) == (core,), "a failed body gives its core back"


def test_waiting_says_so_once_and_ends_when_a_core_is_free() -> None:
    core = available_cores()[0]
    said: list[str] = []
    waiting, has_it = threading.Event(), threading.Event()

    def say(line: str) -> None:
        said.append(line)
        waiting.set()

    def lease() -> None:
        with leased(singles(core), "a", say):
            has_it.set()

    with holder(core) as (process, _):
        thread = threading.Thread(target=lease)
        thread.start()
        assert waiting.wait(60)
        assert not has_it.is_set()
        process.kill()
        assert has_it.wait(60)
        thread.join(60)
    assert said == ["all 1 cores are leased by other workers; waiting for one"]


def compete(folder: str, core: int, rounds: int, ready: Barrier) -> None:
    """Lease the core over and over; a file that only one process may have made shows a second holder."""
    claim = Path(folder) / "claim"
    ready.wait(120)
    for number in range(rounds):
        with leased(singles(core), "a", lambda _: None):
            claim.touch(exist_ok=False)
            assert not [path for path in claim.parent.iterdir() if path.name not in ("claim", "locks", "log")]
            with (claim.parent / "log").open("a") as log:
                log.write(f"{os.getpid()} {number}\n")
            claim.unlink()


def test_never_two_holders(tmp_path: Path) -> None:
    processes, rounds = 3, 6
    ready = SPAWN.Barrier(processes)
    arguments = (str(tmp_path), available_cores()[0], rounds, ready)
    started = [SPAWN.Process(target=compete, args=arguments) for _ in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
        assert process.exitcode == 0
    assert len((tmp_path / "log").read_text().splitlines()) == processes * rounds


def test_the_runtime_is_shown_the_leased_cores_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "0-7")
    monkeypatch.delenv(COUNT, raising=False)
    before = os.sched_getaffinity(0)
    with leased(neuron((4, 5), (6, 7)), "a", lambda _: None) as lease:
        assert (lease.core, lease.cores, lease.bound) == (4, (4, 5), True)
        assert (os.environ[VISIBLE], os.environ[COUNT]) == ("4-5", "2")
        assert os.sched_getaffinity(0) == before, "a NeuronCore says nothing about CPU cores"
        with worker(neuron((4, 5), (6, 7))) as other:
            assert other.has() == ([6, 7], "6-7", "2")
    assert (os.environ[VISIBLE], os.environ.get(COUNT)) == ("0-7", None)
    with leased(neuron((3,)), "a", lambda _: None):
        assert (os.environ[VISIBLE], os.environ[COUNT]) == ("3", "1")


def test_several_cores_are_leased_together_or_not_at_all() -> None:
    wide, narrow = neuron((0, 1), (2, 3)), neuron((0,), (1,), (2,), (3,))
    with worker(narrow) as one:
        assert one.has()[0] == [0]
        assert lease_now(wide) == (2, 3)
        with worker(narrow) as two, worker(narrow) as three:
            holders = {two.has()[0][0]: two, three.has()[0][0]: three}  # whichever comes first has core 1
            assert sorted(holders) == [1, 2]
            assert lease_now(wide) is None
            assert lease_now(narrow) == (3,), "an attempt in vain leaves nothing behind"
            holders[2].ends()
            assert lease_now(wide) == (2, 3)


def test_cpu_and_neuron_cores_do_not_meet() -> None:
    with worker(neuron((0,))) as one:
        one.has()
        core = available_cores()[0]
        assert lease_now(singles(core)) == (core,)
        assert lease_now(neuron((0,))) is None
        assert [holding.cores for holding in leases("neuron")[0]] == [(0,)]
        assert leases("cpu") == ([], [])


def test_a_job_with_few_workers_is_served_before_a_long_queue_of_another() -> None:
    """On two cores job a has two workers and three more in the queue when b comes; the next free core is b's."""
    pool = neuron((0,), (1,))
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(worker(pool, "a"))
        assert first.has()[0] == [0]
        second = stack.enter_context(worker(pool, "a"))
        assert second.has()[0] == [1]
        queue = [stack.enter_context(worker(pool, "a")) for _ in range(3)]
        for waiting in queue:
            assert waiting.says() == "all 2 NeuronCores are leased by other workers; waiting for one"
        assert first.wanted_by() is None, "nobody gives way to the own job"
        late = stack.enter_context(worker(pool, "b"))
        assert late.says() == "all 2 NeuronCores are leased by other workers; waiting for one"
        holding, in_queue = leases("neuron")
        assert {(holder.job, holder.pid) for holder in holding} == {("a", one.process.pid) for one in (first, second)}
        assert [waiting.job for waiting in sorted(in_queue, key=lambda waiting: waiting.arrived)] == [*"aaab"]
        assert (first.wanted_by(), second.wanted_by()) == ("b", None), "one core for b, of whom had it longest"
        first.ends()
        assert late.has()[0] == [0], "before the three of job a that have waited longer"
        assert second.wanted_by() is None, "each job has one core now"


def test_a_lease_lives_as_long_as_a_process_that_it_was_handed_down_to() -> None:
    """The worker is killed while a child works on its core: the core is free when the child is dead, too."""
    code = """
import subprocess, sys
from pipeline.cores import CorePool
from pipeline.leases import leased
with leased(CorePool("neuron", ((0,),)), "a", print) as lease:
    argv = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    child, other = subprocess.Popen(argv, pass_fds=lease.descriptors), subprocess.Popen(argv)
    print(child.pid, other.pid, flush=True)
    child.wait()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child, other = map(int, process.stdout.readline().split())
        process.kill()
        process.wait(60)
        assert lease_now(neuron((0,))) is None
        kill_and_see_dead(child)
        assert lease_now(neuron((0,))) == (0,), "a child that it was not handed down to does not hold it"
        kill_and_see_dead(other)


def kill_and_see_dead(pid: int) -> None:
    """Of a process that is no child of this one."""
    descriptor = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([descriptor], [], [], 60)[0]
    os.close(descriptor)


def test_a_process_that_starts_anew_keeps_its_cores_or_gives_them_back(tmp_path: Path) -> None:
    """One process id over three lives: with the same cores, then in the queue behind somebody else."""
    code = """
import json, os, sys
from pipeline.cores import CorePool
from pipeline.leases import leased
from pipeline.renewal import done_before, start_anew
lives = done_before().get("lives", 0) + 1
opened = open(os.devnull)
os.set_inheritable(opened.fileno(), True)
before = os.environ.get("NEURON_RT_VISIBLE_CORES")
with leased(CorePool("neuron", ((0,), (1,))), "a", lambda line: print(line, flush=True), turn_s=0) as lease:
    passed_on = [name for name in os.environ if name.startswith("LENGTHWISE_") and name != "LENGTHWISE_LOCK_DIR"]
    files = sum(os.path.exists(f"/proc/self/fd/{number}") for number in range(3, 100))
    print(json.dumps([lives, os.getpid(), before, lease.cores, lease.wanted_by(), passed_on, files]), flush=True)
    sys.stdin.readline()
    lease.kept = lives == 1
if lives < 3:
    start_anew(lease if lives == 1 else None, {"lives": lives})
"""
    with worker(neuron((0,))) as first:
        first.has()
        started = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   text=True, env={**os.environ, VISIBLE: "0-1"})  # fmt: skip
        with started as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == [1, process.pid, "0-1", [1], None, [], 2]
            with worker(neuron((1,)), "b") as other:
                assert other.says() == "all 1 NeuronCores are leased by other workers; waiting for one"
                process.stdin.write("\n")
                process.stdin.flush()
                # The file that was left inheritable is closed; what is open is its successor and the lease.
                assert json.loads(process.stdout.readline()) == [2, process.pid, "0-1", [1], "b", [], 2]
                process.stdin.write("\n")
                process.stdin.flush()
                assert other.has()[0] == [1]
                assert process.stdout.readline().startswith("all 2 NeuronCores are leased")
                other.ends()
                assert json.loads(process.stdout.readline()) == [3, process.pid, "0-1", [1], None, [], 2]
            process.communicate("\n", 60)
            assert process.returncode == 0
        assert lease_now(neuron((1,))) == (1,)


def test_a_lock_is_refused_or_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.lock"
    order: list[str] = []
    trying = threading.Event()

    def wait_for_it() -> None:
        trying.set()
        with try_lock(path, wait=True) as held:
            order.append(f"second {held}")

    with try_lock(path) as held:
        assert held
        with try_lock(path) as again:
            assert not again, "also within one process"
        thread = threading.Thread(target=wait_for_it)
        thread.start()
        assert trying.wait(60)
        order.append("first done")
    thread.join(60)
    assert order == ["first done", "second True"]
    with try_lock(path) as held:
        assert held


def test_where_locks_lie(lock_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lock_dir() == lock_folder
    monkeypatch.delenv("LENGTHWISE_LOCK_DIR")
    assert lock_dir().name == f"lengthwise-{os.getuid()}", "users of one host do not meet each other's files"


def test_one_thread_covers_the_libraries_that_start_more() -> None:
    assert ONE_THREAD["OMP_NUM_THREADS"] == ONE_THREAD["RAYON_NUM_THREADS"] == "1"
