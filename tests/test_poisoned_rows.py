"""Rows that break the device or kill the worker, in real processes: they are rejects, the rest goes on."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from faulty_target import executions
from plugins import register_targets

from jobs import DS, JobHome, make_home, published, put_rows
from pipeline.airflow_task import StepFailedError, run_step
from pipeline.objects import Objects

POISONED = (11, 12, 30)
BATCH = 8


def night(poisoned: tuple[int, ...] = POISONED, count: int = 48) -> list[dict[str, Any]]:
    return [
        {"id": f"r{row}", "text": f"a {'[MASK]' if row in poisoned else 'good'} movie {row}", "group": "a"}
        for row in range(count)
    ]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> dict[str, str]:
    """The environment that has the target `faulty`, with its artifacts built over a night without poison."""
    folder = tmp_path_factory.mktemp("faulty")
    environment = register_targets(folder / "plugin", {"faulty": "faulty_target"})
    home = make_job(folder, tiny_model, environment)
    put_rows(Objects().put, str(folder), night(()), files=1)
    home.run()
    return environment


def make_job(folder: Path, model: Path, environment: dict[str, str], **fields: Any) -> JobHome:
    settings = {"target": "faulty", "shapes": [f"{BATCH}x32"], "max_length": 32, "workers": 1, "compile": "auto"}
    home = make_home(folder, model, str(folder), **settings, reject_budget={"share": 0.1}, **fields)
    return replace(home, environment={**home.environment, **environment})


@pytest.fixture
def home(tmp_path: Path, tiny_model: Path, faulty: dict[str, str]) -> JobHome:
    put_rows(Objects().put, str(tmp_path), night(), files=1)
    return make_job(tmp_path, tiny_model, faulty)


def fault(home: JobHome, **settings: Any) -> dict[str, str]:
    return {"FAULTY": json.dumps({"log": str(home.folder / "log"), **settings})}


def tables(home: JobHome) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    read = [
        pq.read_table(f"{home.folder}/out/{table}/ds={DS}/part-00000.parquet", partitioning=None).to_pylist()
        for table in ("predictions", "rejects")
    ]
    return read[0], read[1]


def check_rejects(home: JobHome, poisoned: tuple[int, ...], reason: str) -> None:
    """The poisoned rows are rejects, and all others are what they are on a device that no row breaks, to the bit."""
    predictions, rejects = tables(home)
    assert [(row["source_row"], row["stage"], row["reason"]) for row in rejects] == [
        (row, "infer", reason) for row in poisoned
    ]
    home.run("--fresh")
    whole, none = tables(home)
    assert none == []
    assert predictions == [row for row in whole if row["source_row"] not in poisoned]


def test_rows_that_break_the_device_are_rejects(home: JobHome) -> None:
    done = home.command("run", str(home.file), "--ds", DS, "--json", **fault(home, how="raise"))
    assert done.returncode == 0, done.stderr
    assert "a row is rejected, the device failed on it alone: DeviceError: faulty: a row holds [MASK]" in done.stderr
    report = json.loads(done.stdout)
    assert report["reject_reasons"] == {"device_error": 3}
    used = len(executions(home.folder / "log"))
    assert used <= 48 // BATCH + len(POISONED) * (2 * math.log2(BATCH) + 2)
    assert report["slot_tokens"] == used * BATCH * 32, "every executed graph is counted"
    check_rejects(home, POISONED, "device_error")


def test_a_row_that_kills_the_worker_is_a_reject(home: JobHome) -> None:
    put_rows(Objects().put, str(home.folder), night((11,), count=24), files=1)
    done = home.command("run", str(home.file), "--ds", DS, "--json", **fault(home, how="abort"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["reject_reasons"] == {"worker_killed": 1}
    processes = {line["pid"] for line in executions(home.folder / "log")}
    assert len(processes) <= 1 + 2 + 2 * math.ceil(math.log2(24)) + 2
    check_rejects(home, (11,), "worker_killed")


def test_over_the_budget_of_rejects_by_the_device_nothing_is_published(home: JobHome) -> None:
    home.file.write_text(home.file.read_text().replace("share: 0.1", "share: 0.05"))
    done = home.command("run", str(home.file), "--ds", DS, **fault(home, how="error"))
    assert done.returncode == 3, done.stderr
    assert "3 of 48 rows were rejected (6.25%), more than the job allows" in done.stderr
    assert "       3  device_error     the device failed on this row" in done.stderr
    assert "Traceback" not in done.stderr
    assert published(Objects(), str(home.folder)) == {}


def test_a_broken_device_rejects_nothing(home: JobHome) -> None:
    done = home.command("run", str(home.file), "--ds", DS, **fault(home, how="raise", every=True))
    assert done.returncode == 6, done.stderr
    assert "the device fails on a batch without any row, too" in done.stderr
    assert "Traceback" not in done.stderr
    assert published(Objects(), str(home.folder)) == {}
    assert home.run()["rejected"] == 0, "a device that was mended blames no row for what was"


def test_an_airflow_task_finds_the_rows_at_its_first_retry(home: JobHome, monkeypatch: pytest.MonkeyPatch) -> None:
    put_rows(Objects().put, str(home.folder), night((11,), count=16), files=1)
    run = plan(home)
    for name, value in {**home.environment, **fault(home, how="kill")}.items():
        monkeypatch.setenv(name, value)
    arguments = ("infer", str(home.file), DS, "--run", run, "--index", "0", "--of", "1")
    with pytest.raises(StepFailedError, match="ended by signal 9"):
        run_step(*arguments)
    assert run_step(*arguments)["shards"] == 1
    for step in ("publish", "commit", "report"):
        run_step(step, str(home.file), DS, "--run", run)
    predictions, rejects = tables(home)
    assert (len(predictions), [row["reason"] for row in rejects]) == (15, ["worker_killed"])


def plan(home: JobHome) -> str:
    """The night up to a planned run; its URI."""

    def step(name: str, *arguments: str) -> dict[str, Any]:
        done = home.command("step", name, "--job", str(home.file), "--ds", DS, *arguments)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))

    snapshot = step("snapshot")["snapshot"]
    step("tokenize", "--snapshot", snapshot)
    return str(step("plan", "--snapshot", snapshot)["run"])


def start_worker(home: JobHome, run: str, **settings: Any) -> subprocess.Popen[str]:
    """A worker that waits in its first execution until the file `go` exists."""
    waiting = replace(
        home, environment={**home.environment, **fault(home, wait_for=str(home.folder / "go"), **settings)}
    )
    process = waiting.start("step", "infer", "--job", str(home.file), "--ds", DS, "--run", run)
    wait_for_executions(home, 1, process)
    return process


def wait_for_executions(home: JobHome, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while len(executions(home.folder / "log")) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_kills_from_outside_make_no_rejects(home: JobHome) -> None:
    run = plan(home)
    for number in range(3):
        process = start_worker(home, run, times=0, how="raise")
        wait_for_executions(home, number + 1, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert home.run()["rejected"] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_asked_to_end_finishes_its_shard(home: JobHome, number: int) -> None:
    run = plan(home)
    process = start_worker(home, run, how="raise", times=0)
    process.send_signal(number)
    (home.folder / "go").touch()
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    assert Objects().exists(f"{run}/shards/shard-00000.arrow")


def test_a_worker_whose_shard_takes_too_long_ends_without_it(home: JobHome) -> None:
    run = plan(home)
    process = start_worker(home, run, how="raise", times=0)
    asked = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 143, errors
    assert time.monotonic() - asked < 30
    assert "Traceback" not in errors
    assert Objects().list(f"{run}/shards/") == []
    report = home.run()
    assert report["rejected"] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_coordinator_says_what_is_kept_and_leaves_no_orphans(home: JobHome, number: int) -> None:
    waiting = replace(
        home, environment={**home.environment, **fault(home, how="raise", times=0, wait_for=str(home.folder / "go"))}
    )
    process = waiting.start("run", str(home.file), "--ds", DS)
    wait_for_executions(home, 1, process)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    if number == signal.SIGINT:  # Ctrl-C reaches the whole group
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 128 + number, errors
    assert f"0 of 1 shards are finished and kept; lengthwise run {home.file} --ds {DS} does the other 1" in errors
    assert errors.count("what is finished is kept, run the same command to continue") == 1
    assert "Traceback" not in errors
    psutil.wait_procs(children, timeout=20)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
