"""Rows that kill their process are found piece by piece, on any host; a kill from outside costs no row."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compile.errors import DeviceError
from pipeline.errors import StorageError, WorkerError
from pipeline.execution import Health
from pipeline.isolation import MAX_DEADLY_ROWS, Isolation, piece_object, suspects
from pipeline.objects import Objects
from pipeline.shard_result import ShardResult
from pipeline.tasks.classify import logits_array, logits_type


class Host:
    """Executes pieces as processes would: `deadly` rows end them by signal 6; `before` is told of every start."""

    def __init__(self, folder: Path, deadly: set[int], before: Callable[[int, int, int], int] = lambda *_: 0) -> None:
        self.uri, self.deadly, self.before = str(folder / "run"), deadly, before
        self.starts = 0

    def run_piece(self, start: int, stop: int) -> tuple[int, dict[str, Any], Exception | None]:
        self.starts += 1
        code = self.before(self.starts, start, stop)
        if code or any(start <= row < stop for row in self.deadly):
            return code or -6, {}, None
        if stop > start:
            logits = np.arange(start, stop, dtype=np.float32)[:, None]
            Objects().put_new(
                piece_object(self.uri, 3, start, stop), ShardResult.executed(logits_array(logits)).encode()
            )
        return 0, {"executions": 1}, None

    def isolation(self) -> Isolation:
        return Isolation(Objects(), self.uri, 3, logits_type(1), Health(), self.run_piece, lambda line: None)


def check(result: ShardResult, rows: int, deadly: set[int]) -> None:
    assert result.output.to_pylist() == [None if row in deadly else [row] for row in range(rows)]
    assert result.faults == tuple("worker_killed" if row in deadly else None for row in range(rows))


@pytest.mark.parametrize("seed", range(15))
def test_exactly_the_deadly_rows_are_found_within_the_bound(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows = rng.choice([1, 2, 7, 64, 300])
    deadly = set(rng.sample(range(rows), rng.randint(0, min(rows, 5))))
    host = Host(tmp_path, deadly)
    check(host.isolation().run(rows), rows, deadly)
    assert host.starts <= 2 + len(deadly) * (2 * math.ceil(math.log2(rows)) + 2)


def test_a_kill_from_outside_makes_no_reject(tmp_path: Path) -> None:
    """Every piece is killed at its first start, single rows included: no row dies twice."""
    killed: set[tuple[int, int]] = set()

    def before(number: int, start: int, stop: int) -> int:
        first = stop > start and (start, stop) not in killed
        killed.add((start, stop))
        return -9 if first else 0

    check(Host(tmp_path, set(), before).isolation().run(9), 9, set())


def test_a_shard_that_kills_nothing_costs_one_process(tmp_path: Path) -> None:
    host = Host(tmp_path, set())
    check(host.isolation().run(100), 100, set())
    assert host.starts == 1


@pytest.mark.parametrize("seed", range(3))
def test_it_goes_on_where_a_lost_host_left_it(tmp_path: Path, seed: int) -> None:
    """The whole host goes, supervisor included, at every third start; even a row that always takes it down is found."""
    rng = random.Random(seed)
    deadly = set(rng.sample(range(40), 2))
    takes_all = min(deadly)

    def before(number: int, start: int, stop: int) -> int:
        if number % 3 == 0 or start <= takes_all < stop:
            os._exit(9)
        return 0

    for _ in range(60):
        child = os.fork()
        if child == 0:
            Host(tmp_path, deadly, before).isolation().run(40)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            break
    check(Host(tmp_path, deadly).isolation().run(40), 40, deadly)


def test_a_broken_device_is_named_at_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    host = Host(tmp_path, set(), lambda *_: -11)
    with pytest.raises(DeviceError, match=r"dies \(signal 11\) without executing any row"):
        host.isolation().run(100)
    assert host.starts == 2
    assert Objects().list(host.uri) == []
    check(Host(tmp_path, set()).isolation().run(100), 100, set())


def test_a_device_that_breaks_while_a_row_is_alone_blames_no_row(tmp_path: Path) -> None:
    host = Host(tmp_path, {5}, lambda number, start, stop: -6 if number > 8 else 0)
    with pytest.raises(DeviceError):
        host.isolation().run(16)
    assert Objects().list(host.uri) == []


def test_an_error_that_the_process_could_name_is_raised_and_is_no_death(tmp_path: Path) -> None:
    host = Host(tmp_path, set())

    def refuse(start: int, stop: int) -> tuple[int, dict[str, Any], Exception | None]:
        return (5, {}, StorageError("away")) if stop else (0, {"executions": 1}, None)

    isolation = host.isolation()
    isolation.run_piece = refuse
    with pytest.raises(StorageError, match="away"):
        isolation.run(4)
    assert Objects().list(host.uri) == []


def test_a_shard_of_deadly_rows_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=f"more than {MAX_DEADLY_ROWS} rows of shard 3 kill the process"):
        Host(tmp_path, set(range(10, 60))).isolation().run(100)


def test_suspects_are_read_from_names() -> None:
    names = ["r/shards/shard-00001.arrow", "r/shards/shard-00002/000000-000004.begun-1", "r/shards/shard-00012/x"]
    assert suspects("r", names) == {2, 12}
