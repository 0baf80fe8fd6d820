"""Who gets which cores next: exact cases, and what holds for any queue."""

from __future__ import annotations

import math
import random

import pytest

from pipeline.core_sharing import Allocation, Group, Holding, Waiting, allocate

ONE, TWO, FOUR = ((0,),), ((0,), (1,)), ((0,), (1,), (2,), (3,))
PAIRS = ((0, 1), (2, 3))


def waits(job: str, arrived: float, groups: tuple[Group, ...]) -> Waiting:
    return Waiting(f"{job}{arrived:g}", job, arrived, groups)


def holds(job: str, *cores: int, since: float = 0, turn_s: float = 10, leaving: bool = False) -> Holding:
    return Holding(job, cores, since, turn_s, leaving)


def given(found: Allocation) -> tuple[dict[str, Group], dict[Group, str]]:
    return found.granted, {holder.cores: job for holder, job in found.asked.items()}


CASES = [
    ("free cores are taken in order of arrival", [waits("a", 2, TWO), waits("a", 1, TWO), waits("a", 3, TWO)], [],
     {"a1": (0,), "a2": (1,)}, {}),
    ("the job that holds fewer goes first, whatever its place in the queue",
     [waits("a", 1, TWO), waits("b", 2, TWO)], [holds("a", 0)], {"b2": (1,)}, {}),
    ("two jobs that arrive together share what is free", [waits("a", 1, FOUR), waits("a", 2, FOUR), waits("a", 3, FOUR),
     waits("b", 4, FOUR), waits("b", 5, FOUR)], [], {"a1": (0,), "b4": (1,), "a2": (2,), "b5": (3,)}, {}),
    ("nobody gives way where a core is free", [waits("b", 1, TWO)], [holds("a", 0)], {"b1": (1,)}, {}),
    ("a job without a core gets one, of the worker with the longest turn", [waits("b", 1, TWO)],
     [holds("a", 0, since=5), holds("a", 1, since=1)], {}, {(1,): "b"}),
    ("not before its turn is over", [waits("b", 1, ONE)], [holds("a", 0, since=95)], {}, {}),
    ("a job with one core gets no second one of a job with two", [waits("b", 1, FOUR)],
     [holds("a", 0), holds("a", 1), holds("b", 2), holds("c", 3)], {}, {}),
    ("of a job with three it does", [waits("b", 1, FOUR)],
     [holds("a", 0, since=3), holds("a", 1), holds("a", 2, since=4), holds("b", 3)], {}, {(1,): "b"}),
    ("the same job never gives way to itself", [waits("a", 1, ONE)], [holds("a", 0)], {}, {}),
    ("who leaves already is enough", [waits("b", 1, TWO)], [holds("a", 0, leaving=True), holds("a", 1)], {}, {}),
    ("a second one without a core takes turns with the first", [waits("c", 1, TWO)],
     [holds("a", 0, since=2), holds("b", 1, since=1)], {}, {(1,): "c"}),
    ("a wide copy takes neighbours", [waits("w", 1, PAIRS)], [holds("a", 1, turn_s=math.inf)], {"w1": (2, 3)}, {}),
    ("cores are kept for a wide copy that waits for their neighbours",
     [waits("w", 1, PAIRS), waits("a", 2, FOUR)], [holds("a", 0, turn_s=math.inf), holds("a", 3, turn_s=math.inf),
     holds("a", 2, turn_s=math.inf)], {}, {}),
    ("all in the way of a wide copy give way, and only they", [waits("w", 1, PAIRS)],
     [holds("a", 0, since=4), holds("a", 1, since=5), holds("a", 2, since=2), holds("a", 3, since=3)], {},
     {(2,): "w", (3,): "w"}),
    ("a wide holder gives all of its cores", [waits("b", 1, FOUR)], [holds("w", 0, 1), holds("w", 2, 3, since=1)], {},
     {(0, 1): "b"}),
    ("others may go where the first in the queue cannot", [waits("a", 1, ((0,),)), waits("b", 2, ((1,),))],
     [holds("x", 0, turn_s=math.inf)], {"b2": (1,)}, {}),
    ("an empty queue asks nobody", [], [holds("a", 0)], {}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("waiting", "holding", "granted", "asked"), [case[1:] for case in CASES],
                         ids=[case[0] for case in CASES])  # fmt: skip
def test_who_is_served(
    waiting: list[Waiting], holding: list[Holding], granted: dict[str, Group], asked: dict[Group, str]
) -> None:
    assert given(allocate(waiting, holding, now=100)) == (granted, asked)


@pytest.mark.parametrize("seed", range(60))
def test_a_host_where_all_give_way_settles_and_is_fair(seed: int) -> None:
    """Played to the end with endless work: no core twice, none idle, and every job has its share."""
    rng = random.Random(seed)
    cores = rng.randint(1, 8)
    jobs = [f"job{number}" for number in range(rng.randint(1, 5))]
    groups = tuple((core,) for core in range(cores))
    waiting = [waits(rng.choice(jobs), number, groups) for number in range(rng.randint(1, 30))]
    holding: list[Holding] = []
    present = {worker.job for worker in waiting}
    workers = {job: sum(worker.job == job for worker in waiting) for job in present}
    now, moves = 100.0, 0
    for _ in range(60):
        now += 100
        found = allocate(waiting, holding, now)
        for name, group in found.granted.items():
            worker = next(worker for worker in waiting if worker.name == name)
            waiting.remove(worker)
            holding.append(Holding(worker.job, group, now, 10))
        moves += len(found.asked)
        for holder in found.asked:
            holding.remove(holder)
            waiting.append(Waiting(f"{holder.job}-{now}-{holder.cores}", holder.job, now, groups))
        taken = [core for holder in holding for core in holder.cores]
        assert len(taken) == len(set(taken))
    held = {job: sum(holder.job == job for holder in holding) for job in present}
    for job in present:
        richest = max(held.values())
        satisfied = held[job] >= min(workers[job], richest - 1)
        assert satisfied, (held, workers)
    if len(present) <= cores:
        assert len(holding) == min(cores, sum(workers.values())), "no core is idle while somebody waits"
        assert not allocate(waiting, holding, now + 100).asked, "and cores are not passed around for ever"


@pytest.mark.parametrize("seed", range(20))
def test_more_jobs_than_cores_take_turns(seed: int) -> None:
    rng = random.Random(seed)
    cores = rng.randint(1, 3)
    groups = tuple((core,) for core in range(cores))
    jobs = [f"job{number}" for number in range(cores + rng.randint(1, 4))]
    waiting = [waits(job, number, groups) for number, job in enumerate(jobs)]
    holding: list[Holding] = []
    served, arrivals = dict.fromkeys(jobs, 0), len(jobs)
    for step in range(20 * len(jobs)):
        found = allocate(waiting, holding, now=100.0 * step + 100)
        for name, group in found.granted.items():
            worker = next(worker for worker in waiting if worker.name == name)
            waiting.remove(worker)
            holding.append(Holding(worker.job, group, 100.0 * step + 100, 10))
            served[worker.job] += 1
        for holder in found.asked:
            holding.remove(holder)
            arrivals += 1
            waiting.append(waits(holder.job, arrivals, groups))
    assert min(served.values()) > 0
    assert max(served.values()) - min(served.values()) <= 2, served
