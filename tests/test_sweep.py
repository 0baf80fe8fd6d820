"""What is swept: the work of runs that nobody went on with and that another version replaced; never a live run's."""

from __future__ import annotations

import os
import time
from dataclasses import replace as changed
from pathlib import Path

import pytest

from jobs import DS, JobHome, make_home, published, put_rows, rows
from pipeline import flow, steps
from pipeline.locks import lock_dir, sweep_locks, try_lock
from pipeline.objects import Objects
from pipeline.sweep import partitions, sweep_partition

HOUR = 3600.0


@pytest.fixture
def home(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> JobHome:
    home = make_home(tmp_path, tiny_model, str(tmp_path), shapes=["8x128"], workers=1)
    put_rows(Objects().put, str(tmp_path), rows(20))
    for name in ("LENGTHWISE_CACHE", "LENGTHWISE_LOCK_DIR"):
        monkeypatch.setenv(name, home.environment[name])
    return home


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def age(paths: set[Path], hours: float) -> None:
    for path in paths:
        os.utime(path, (time.time() - hours * HOUR,) * 2)


def planned(home: JobHome) -> str:
    """A run that ended soon after its plan."""
    context = home.context()
    run: str = flow.prepare(context, home.file)["run"]
    context.objects.put(f"{run}/events/killed.jsonl", b"")
    return run


def test_abandoned_and_replaced_work_goes_and_the_published_runs_stays(home: JobHome) -> None:
    state = home.folder / "out/_lengthwise"
    context = home.context()
    flow.run(context, home.file)
    kept, seen = files(state), published(Objects(), str(home.folder))
    abandoned = planned(home.variant(max_length=64))
    old = files(state) - kept
    temporary = state / f"tokens/ds={DS}/.lengthwise-tmp-killed"
    temporary.write_bytes(b"x")
    age(kept | old | {temporary}, hours=100)
    other = home.variant(max_length=32)
    live = planned(other)
    young = files(state) - kept - old - {temporary}

    assert sweep_partition(context, time.time() - 1000 * HOUR) == 0
    steps.sweep(context)  # with the job's 72 hours
    work = {path for path in kept | young if path.relative_to(state).parts[0] in ("runs", "tokens")}
    assert files(state / "runs") | files(state / "tokens") == work
    assert kept <= files(state)
    assert not Path(abandoned).exists() or not files(Path(abandoned))
    assert Path(live, "plan.json").exists()
    assert published(Objects(), str(home.folder)) == seen
    assert flow.run(context, home.file)["predicted"] == 20
    assert flow.run(other.context(), other.file)["predicted"] == 20, "the live run goes on"


def test_a_run_whose_newest_object_is_young_keeps_all_it_needs_however_old(home: JobHome) -> None:
    state = home.folder / "out/_lengthwise"
    other = home.variant(max_length=64)
    run = planned(other)
    everything = files(state)
    age(everything, hours=100)
    os.utime(f"{run}/events/killed.jsonl")
    steps.sweep(other.context())
    assert files(state) == everything, "its tokens and its snapshot are old, but referred to"


def test_the_work_of_before_a_fresh_start_goes_once_it_is_old(home: JobHome) -> None:
    context = home.context()
    flow.run(context, home.file)
    first = files(home.folder / "out/_lengthwise/runs")
    steps.forget(context)
    flow.run(context, home.file)
    second = files(home.folder / "out/_lengthwise/runs") - first
    assert first <= files(home.folder / "out/_lengthwise/runs"), "a run of before may still be going on"
    age(files(home.folder / "out/_lengthwise"), hours=100)
    steps.sweep(context)
    assert files(home.folder / "out/_lengthwise/runs") == second


def test_a_run_whose_work_was_swept_says_so_and_can_be_started_again(home: JobHome) -> None:
    from pipeline.errors import StorageError

    context = home.context()
    run = flow.prepare(context, home.file)["run"]
    for path in files(home.folder / "out/_lengthwise/tokens"):
        path.unlink()
    with pytest.raises(StorageError, match=r"swept as work that nobody had touched.*run again"):
        steps.infer(context, run)
    assert flow.run(context, home.file)["predicted"] == 20


def test_every_partition_with_work_is_found(home: JobHome) -> None:
    context = home.context()
    assert partitions(context) == []
    flow.prepare(context, home.file)
    other = "2026-11-25"
    put_rows(context.objects.put, str(home.folder), rows(5), ds=other)
    flow.prepare(changed(context, ds=other), home.file)
    assert partitions(context) == [DS, other]


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LENGTHWISE_LOCK_DIR", str(tmp_path / "locks"))
    return lock_dir() / "shards"


def test_shard_locks_of_finished_and_forgotten_runs_go_but_never_one_that_is_held(locks: Path) -> None:
    paths = {name: locks / name / "0.lock" for name in ("finished", "old", "young", "held")}
    for path in paths.values():
        with try_lock(path):
            pass
    age({paths["old"], paths["held"]}, hours=100)
    with try_lock(paths["held"]) as held:
        assert held
        sweep_locks("finished", time.time() - HOUR)
        assert {path.parent.name for path in files(locks)} == {"young", "held"}
    assert {path.name for path in locks.iterdir()} == {"young", "held"}, "empty folders go, too"
