"""A core has one holder, waits for one when all are taken, and is free at once after its holder was killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from pipeline.cores import ONE_THREAD, available_cores, leased_core, lock_dir, try_lock

SPAWN = multiprocessing.get_context("spawn")
HOLD = """
import sys
from pipeline.cores import leased_core
with leased_core([int(core) for core in sys.argv[1:]], lambda line: None) as core:
    print(core, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def lock_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LENGTHWISE_LOCK_DIR", str(tmp_path / "locks"))
    return tmp_path / "locks"


@contextlib.contextmanager
def holder(*cores: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that has leased one of the cores, and which one."""
    argv = [sys.executable, "-c", HOLD, *map(str, cores)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def lease_now(cores: list[int]) -> int | None:
    """The core that is leased at the first attempt, None when it would wait."""

    class WouldWaitError(Exception):
        pass

    def refuse(line: str) -> None:
        raise WouldWaitError(line)

    try:
        with leased_core(cores, refuse) as core:
            return core
    except WouldWaitError:
        return None


def test_a_core_is_free_at_once_after_its_holder_was_killed() -> None:
    core = available_cores()[0]
    for _ in range(3):
        with holder(core) as (process, held):
            assert held == core
            assert lease_now([core]) is None
            process.kill()
            process.wait(60)
            assert lease_now([core]) == core


def test_the_next_free_core_is_taken_and_none_twice() -> None:
    first, *others = available_cores()
    second = others[0] if others else first
    if first == second:  # a machine of one core has none to go on with
        assert lease_now([first]) == first
        return
    with holder(first, second) as (_, one), holder(first, second) as (_, two):
        assert {one, two} == {first, second}
        assert lease_now([first, second]) is None


def test_a_worker_runs_on_its_core_alone_and_gets_the_others_back() -> None:
    before = os.sched_getaffinity(0)
    core = available_cores()[-1]
    with leased_core([core], lambda _: None) as leased:
        assert leased == core
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == before
    with pytest.raises(RuntimeError, match="in the body"), leased_core([core], lambda _: None):
        raise RuntimeError("in the body")
    assert os.sched_getaffinity(0) == before
    assert lease_now([core]) == core, "a failed body gives its core back"


def test_waiting_says_so_once_and_ends_when_a_core_is_free() -> None:
    core = available_cores()[0]
    said: list[str] = []
    waiting, leased = threading.Event(), threading.Event()

    def say(line: str) -> None:
        said.append(line)
        waiting.set()

    def lease() -> None:
        with leased_core([core], say):
            leased.set()

    with holder(core) as (process, _):
        thread = threading.Thread(target=lease)
        thread.start()
        assert waiting.wait(60)
        assert not leased.is_set()
        process.kill()
        assert leased.wait(60)
        thread.join(60)
    assert said == ["all 1 cores are leased by other workers; waiting for one"]


def compete(folder: str, core: int, rounds: int, ready: Barrier) -> None:
    """Lease the core over and over; a file that only one process may have made shows a second holder."""
    claim = Path(folder) / "claim"
    ready.wait(120)
    for number in range(rounds):
        with leased_core([core], lambda _: None):
            claim.touch(exist_ok=False)
            assert not [path for path in claim.parent.iterdir() if path.name not in ("claim", "locks", "log")]
            with (claim.parent / "log").open("a") as log:
                log.write(f"{os.getpid()} {number}\n")
            claim.unlink()


def test_never_two_holders(tmp_path: Path) -> None:
    processes, rounds = 3, 25
    ready = SPAWN.Barrier(processes)
    arguments = (str(tmp_path), available_cores()[0], rounds, ready)
    started = [SPAWN.Process(target=compete, args=arguments) for _ in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
        assert process.exitcode == 0
    assert len((tmp_path / "log").read_text().splitlines()) == processes * rounds


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
