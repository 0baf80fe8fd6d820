"""A live Airflow on PostgreSQL, driven through its REST API as its UI drives it, with a small job over S3."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from neuron_tools import double_environment, double_for_job, events

from demo.airflow_client import AirflowClient, ApiError
from demo.inputs import scheduled_nights
from demo.progress import Progress, RunFailedError
from demo.servers.airflow import AirflowEndpoint, local_airflow
from demo.servers.postgres import local_postgres
from demo.servers.seaweed import S3Endpoint
from jobs import make_home, published, put_rows, rows, share_shape_plan
from pipeline.events import read_events
from pipeline.objects import Objects

ROOT = Path(__file__).parents[1]
DAG = "tiny"
NEURON_DAG = "tiny_neuron"
NIGHTS = ["2026-11-10", "2026-11-11", "2026-11-12"]
BY_HAND = "2026-11-20"
NO_DATA = "2026-11-21"
ROWS = {NIGHTS[0]: 20, NIGHTS[1]: 25, NIGHTS[2]: 30, BY_HAND: 35}
STEPS = ["snapshot", "tokenize", "plan", "compile", "infer", "publish", "commit", "report"]

pytestmark = pytest.mark.timeout(1500)


@dataclass(frozen=True)
class Live:
    """The stack, the job's root in S3, its folder of job files, and the processes that serve it."""

    airflow: AirflowEndpoint
    client: AirflowClient
    root: str
    jobs: Path
    double: Path
    """What the double of the Neuron SDK writes in the steps of NEURON_DAG, which alone have it."""

    def tables(self) -> dict[str, bytes]:
        return published(Objects(), self.root)

    def nights(self) -> dict[str, int]:
        """Published nights and the rows in their prediction files, as a reader of Parquet finds them."""
        found: dict[str, int] = {}
        for uri, data in self.tables().items():
            if "/predictions/" in uri:
                ds = uri.split("/ds=")[1].split("/")[0]
                found[ds] = found.get(ds, 0) + pq.read_metadata(io.BytesIO(data)).num_rows
        return found

    def follow(self, *run_ids: str, done: Callable[[], bool] = lambda: True, dag: str = DAG) -> list[str]:
        """Wait for runs to end well; what happened, line by line. Raises RunFailedError with a failed task's log."""
        said: list[str] = []
        Progress(self.client, dag, said.append).follow(lambda run: run["dag_run_id"] in run_ids, done, 1200)
        return said

    def tasks(self, run_id: str, dag: str = DAG) -> dict[str, list[dict[str, Any]]]:
        parts: dict[str, list[dict[str, Any]]] = {}
        for task in self.client.task_instances(dag, run_id):
            parts.setdefault(task["task_id"], []).append(task)
        return parts


def wait_until(condition: Callable[[], object], timeout_s: float = 900) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(1.0)


@pytest.fixture(scope="module")
def live(s3_server: S3Endpoint, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    s3 = replace(s3_server, bucket="airflow-live")
    s3.client().create_bucket(Bucket=s3.bucket)
    root = f"s3://{s3.bucket}/job"
    fields: dict[str, Any] = {"schedule": "0 2 * * *", "start_date": "2026-11-01", "workers": 2}
    fields |= {"shapes": ["8x32", "2x128"]}
    home = make_home(folder / "jobs", tiny_model, root, **fields)
    environment = {
        **s3.environment(),
        "LENGTHWISE_JOBS": str(home.file.parent),
        "LENGTHWISE_CACHE": str(folder / "cache"),
        "LENGTHWISE_LOCK_DIR": str(folder / "locks"),
        **double_for_job(folder / "double", home.file.parent / f"{NEURON_DAG}.yaml"),
    }
    with pytest.MonkeyPatch.context() as patch, local_postgres(folder / "pg") as postgres:
        for name, value in s3.environment().items():
            patch.setenv(name, value)
        # Unpausing a DAG also starts the newest night that its schedule missed: until two o'clock not yesterday's.
        missed = {night.isoformat(): 10 for night in scheduled_nights(datetime.now(UTC).date())}
        for ds, count in {**missed, **ROWS}.items():
            put_rows(Objects().put, root, rows(count, seed=count), ds)
        options: dict[str, Any] = {"environment": environment, "pools": {"cores": 2}}
        with local_airflow(folder / "airflow", postgres.url, ROOT / "dags", **options) as airflow:
            found = Live(airflow, airflow.client(), root, home.file.parent, folder / "double")
            wait_until(lambda: found.client.has_dag(DAG))
            found.client.pause(DAG, paused=False)
            yield found


def test_no_dag_file_has_an_import_error(live: Live) -> None:
    """By the command that an operator would type."""
    argv = [sys.executable, "-m", "airflow", "dags", "list-import-errors", "--output", "json"]
    listed = subprocess.run(
        argv, env=dict(live.airflow.environment), capture_output=True, text=True, check=True, timeout=300
    )
    assert json.loads(listed.stdout.strip().splitlines()[-1]) == []
    assert live.client.import_errors() == []


def test_everything_listens_on_loopback_and_asks_who_calls(live: Live) -> None:
    mine = psutil.Process().children(recursive=True)
    listening = {c.laddr.ip for p in mine for c in p.net_connections() if c.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}
    with pytest.raises(ApiError) as refused:
        AirflowClient(live.airflow.url, "admin", "a guess").health()
    assert refused.value.status == 401


@pytest.fixture(scope="module")
def backfilled(live: Live) -> list[str]:
    """The ids of the three nights' runs, oldest night first, after a backfill by the API."""
    number = live.client.backfill(DAG, NIGHTS[0], NIGHTS[-1], "none", max_active_runs=2)

    def ids() -> list[str]:
        return [run["dag_run_id"] for run in live.client.runs(DAG) if run["run_type"] == "backfill"]

    def scheduled() -> list[str]:
        return [run["dag_run_id"] for run in live.client.runs(DAG) if run["run_type"] == "scheduled"]

    wait_until(lambda: len(ids()) == 3 and scheduled())
    live.follow(*ids(), *scheduled(), done=lambda: live.client.backfill_done(number))
    return ids()


def test_a_backfill_publishes_its_nights(live: Live, backfilled: list[str]) -> None:
    nights = live.nights()
    assert {ds: nights[ds] for ds in NIGHTS} == {ds: ROWS[ds] for ds in NIGHTS}
    assert BY_HAND not in nights
    for run_id, ds in zip(backfilled, NIGHTS, strict=True):
        tasks = live.tasks(run_id)
        assert sorted(tasks) == sorted(STEPS)
        assert {task["state"] for parts in tasks.values() for task in parts} == {"success"}
        assert {name: len(parts) for name, parts in tasks.items() if len(parts) > 1} == {"compile": 2, "infer": 2}
        assert {task["rendered_map_index"] for task in tasks["infer"]} == {"worker 1 of 2", "worker 2 of 2"}
        assert {task["pool"] for task in tasks["infer"]} == {"cores"}
        inferred = [live.client.xcom(DAG, run_id, "infer", index) for index in (0, 1)]
        assert sum(part["rows"] for part in inferred) == ROWS[ds]
        assert [part["compilations"] for part in inferred] == [0, 0]
        assert live.client.xcom(DAG, run_id, "report")["rows"] == ROWS[ds]


def test_a_task_log_has_the_steps_output(live: Live, backfilled: list[str]) -> None:
    (snapshot,) = live.tasks(backfilled[0])["snapshot"]
    log = "\n".join(live.client.log_lines(snapshot))
    assert f"step snapshot of ds={NIGHTS[0]}" in log
    assert "-m pipeline step snapshot" in log


def test_a_published_night_is_an_asset_event_with_counts(live: Live, backfilled: list[str]) -> None:
    events = {event["extra"]["ds"]: event for event in live.client.asset_events(DAG)}
    for run_id, ds in zip(backfilled, NIGHTS, strict=True):
        extra = events[ds]["extra"]
        assert events[ds]["source_run_id"] == run_id
        assert (extra["rows"], extra["predicted"], extra["rejected"]) == (ROWS[ds], ROWS[ds], 0)
        assert extra["uri"] == f"{live.root}/out/predictions/ds={ds}/"
        assert extra["fingerprint"]


def test_one_night_by_hand_and_again_from_the_start(live: Live, backfilled: list[str]) -> None:
    """`partition_date` decides the night; `fresh` computes it anew, to the same bytes; nothing else is touched."""
    others = live.tables()
    first = live.client.trigger(DAG, {"partition_date": BY_HAND})
    live.follow(first)
    once = live.tables()
    assert live.nights()[BY_HAND] == ROWS[BY_HAND]
    assert {uri: data for uri, data in once.items() if f"ds={BY_HAND}" not in uri} == others
    again = live.client.trigger(DAG, {"partition_date": BY_HAND, "fresh": True})
    live.follow(again)
    assert sum(live.client.xcom(DAG, again, "infer", index)["rows"] for index in (0, 1)) == ROWS[BY_HAND]
    assert live.tables() == once


def test_clearing_a_mapped_task_changes_no_byte(live: Live, backfilled: list[str]) -> None:
    run_id = backfilled[1]
    before = live.tables()
    live.client.clear(DAG, run_id, [["infer", 1], "publish", "commit", "report"])
    live.follow(run_id)
    tasks = live.tasks(run_id)
    assert sorted(task["try_number"] for task in tasks["infer"]) == [1, 2]
    assert {name for name, parts in tasks.items() if parts[0]["try_number"] == 2} >= {"publish", "commit", "report"}
    assert live.tables() == before


def test_only_the_rejects_of_a_night_without_any(live: Live, backfilled: list[str]) -> None:
    before = live.tables()
    run_id = live.client.trigger(DAG, {"partition_date": NIGHTS[0], "retry_rejects": True})
    live.follow(run_id)
    assert live.client.xcom(DAG, run_id, "commit")["rows"] == ROWS[NIGHTS[0]]
    assert live.tables() == before


def test_backfilling_again_repeats_no_work_and_changes_no_byte(live: Live, backfilled: list[str]) -> None:
    before = live.tables()
    live.client.backfill(DAG, NIGHTS[0], NIGHTS[-1], "completed", max_active_runs=3)
    live.follow(*backfilled)
    for run_id in backfilled:
        (commit,) = live.tasks(run_id)["commit"]
        assert commit["try_number"] >= 2
        assert [live.client.xcom(DAG, run_id, "infer", index)["rows"] for index in (0, 1)] == [0, 0]
    assert live.tables() == before


def test_a_night_without_data_fails_at_once_and_says_why(live: Live) -> None:
    before = live.tables()
    run_id = live.client.trigger(DAG, {"partition_date": NO_DATA})
    with pytest.raises(RunFailedError, match=rf"(?s)task snapshot.*no input objects for ds={NO_DATA}"):
        live.follow(run_id)
    (snapshot,) = live.tasks(run_id)["snapshot"]
    assert (snapshot["state"], snapshot["try_number"]) == ("failed", 1)
    assert live.tables() == before


@pytest.mark.parametrize("value", ["yesterday", 7])
def test_a_date_that_is_none_is_refused_by_the_form(live: Live, value: Any) -> None:
    with pytest.raises(ApiError) as refused:
        live.client.trigger(DAG, {"partition_date": value})
    assert refused.value.status in (400, 422)
    assert "partition_date" in str(refused.value)


def test_a_bad_job_file_shows_as_an_error_and_costs_the_other_job_nothing(live: Live) -> None:
    bad = live.jobs / "bad.yaml"
    bad.write_text("name: bad\nschedule: every night\n")
    try:
        wait_until(lambda: live.client.import_errors() != [])
        (error,) = live.client.import_errors()
        assert "bad.yaml: schedule: 'every night' is not a cron expression" in error["stack_trace"]
        assert live.client.has_dag(DAG)
        run_id = live.client.trigger(DAG, {"partition_date": BY_HAND})
        live.follow(run_id)
    finally:
        bad.unlink()
    wait_until(lambda: live.client.import_errors() == [])


@pytest.mark.timeout(1800)  # its compile and infer tasks and what they start import PyTorch and optimum-neuron
def test_a_neuron_job_through_the_dag_has_the_bytes_of_a_run_by_hand(
    live: Live, tiny_model: Path, tmp_path: Path
) -> None:
    """Over the double of the SDK, on two simulated NeuronCores; by hand it is one worker, which finds the artifacts."""
    root, shapes = f"{live.root}-neuron", ["2x16", "2x96"]
    own = {"artifacts": str(tmp_path / "artifacts"), "workers": 2}
    fields = {"name": NEURON_DAG, "target": "neuron", "shapes": shapes, **own}
    home = make_home(tmp_path, tiny_model, root, **fields, max_length=96)
    put_rows(Objects().put, root, rows(24), BY_HAND)
    (live.jobs / f"{NEURON_DAG}.yaml").write_text(home.file.read_text())
    wait_until(lambda: live.client.has_dag(NEURON_DAG))
    live.client.pause(NEURON_DAG, paused=False)
    run_id = live.client.trigger(NEURON_DAG, {"partition_date": BY_HAND})
    live.follow(run_id, dag=NEURON_DAG)

    tasks = live.tasks(run_id, NEURON_DAG)
    assert sorted(tasks) == sorted(STEPS)
    assert {task["state"] for parts in tasks.values() for task in parts} == {"success"}
    assert {name: len(parts) for name, parts in tasks.items() if len(parts) > 1} == {"compile": 2, "infer": 2}
    inferred = [live.client.xcom(NEURON_DAG, run_id, "infer", index) for index in (0, 1)]
    assert [part["compilations"] for part in inferred] == [0, 0]
    assert sum(part["rows"] for part in inferred) == 24
    assert live.client.xcom(NEURON_DAG, run_id, "report")["compilations_in_infer"] == 0
    (run,) = {uri.split("/events/")[0] for uri in Objects().list(f"{root}/out/_lengthwise/runs/ds={BY_HAND}/")
              if "/events/" in uri}  # fmt: skip
    seen = {tuple(event["cores"]) for event in read_events(Objects(), f"{run}/events/") if event["event"] == "infer"}
    assert seen == {(0,), (1,)}
    assert sorted(event["shape"] for event in events(live.double / "log", "compile")) == shapes

    share_shape_plan(Objects(), f"{root}/out", f"{root}/hand/out")
    hand = home.variant(workers=1, output={"uri": f"{root}/hand/out"})
    double = double_environment(log=tmp_path / "log")
    done = hand.command("run", str(hand.file), "--ds", BY_HAND, "--no-compile", timeout_s=600, **double)
    assert done.returncode == 0, done.stderr
    assert events(tmp_path / "log", "compile") == []
    results = [
        {uri.removeprefix(of): data for uri, data in published(Objects(), of).items()} for of in (root, f"{root}/hand")
    ]
    assert len(results[0]) == 2
    assert results[0] == results[1]
