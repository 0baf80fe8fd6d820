"""The DAGs: one per job file, cheap to parse, for the right night; a bad file costs no other job anything."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psutil
import pytest

from pipeline.airflow_task import (
    MAX_MAPPED_TASKS,
    StepFailedError,
    StepRefusedError,
    fan_out,
    partition_date,
    run_process,
)
from pipeline.job_folder import read_job_folder

ROOT = Path(__file__).parents[1]
HEAVY = ("pyarrow", "boto3", "botocore", "torch", "numpy", "pandas", "transformers", "tokenizers", "openvino", "duckdb")
JOB = """
name: {name}
schedule: "30 1 * * *"
timezone: Europe/Berlin
queue: accelerators
model: {{uri: s3://lake/models/m}}
input: {{uri: "s3://lake/in/ds={{ds}}/", text: text}}
output: {{uri: s3://lake/{name}}}
"""
PARSE = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
def task(t):
    a = t.partial_kwargs if t.is_mapped else {"pool": t.pool, "queue": t.queue, "outlets": t.outlets}
    return {"after": sorted(t.upstream_task_ids), "mapped": t.is_mapped, "retries": t.retries,
            "pool": a.get("pool", "default_pool"), "queue": a.get("queue", "default"),
            "outlets": [o.name for o in a.get("outlets", [])],
            "fails": [r.exception.__name__ for r in t.retry_policy.rules if r.action.value == "fail"]}
print(json.dumps({
    "errors": bag.import_errors,
    "modules": sorted({m.split(".")[0] for m in sys.modules}),
    "pipeline": sorted(m for m in sys.modules if m.split(".")[0] in ("pipeline", "compile", "demo")),
    "dags": {d.dag_id: {
        "tasks": {t.task_id: task(t) for t in d.tasks},
        "timetable": [type(d.timetable).__name__, str(getattr(d.timetable, "timezone", None))],
        "catchup": d.catchup, "max_active_runs": d.max_active_runs, "doc": d.doc_md, "description": d.description,
        "params": {k: d.params.get_param(k).schema | {"default": d.params[k]} for k in d.params},
        "start": d.start_date.isoformat(), "tags": sorted(d.tags)} for d in bag.dags.values()}}))
"""


def parse(jobs: Path, home: Path) -> dict[str, Any]:
    """What Airflow makes of dags/ in a fresh process, for a folder of job files."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    env = inherited | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "CRITICAL",
        "LENGTHWISE_JOBS": str(jobs),
    }
    argv = [sys.executable, "-c", PARSE, str(ROOT / "dags")]
    out = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert out.returncode == 0, out.stderr
    return dict(json.loads(out.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The repository's own jobs, one more, and three files that cannot be jobs."""
    jobs = tmp_path_factory.mktemp("jobs")
    for path in (ROOT / "jobs").glob("*.yaml"):
        shutil.copy(path, jobs)
    (jobs / "berlin.yaml").write_text(JOB.format(name="berlin"))
    (jobs / "by_hand.yml").write_text(JOB.format(name="by_hand").replace("schedule:", "description:"))
    (jobs / "broken.yaml").write_text(
        JOB.format(name="broken").replace("timezone: Europe/Berlin", "timezone: Mars/Base")
    )
    (jobs / "not_yaml.yaml").write_text("name: [unclosed")
    (jobs / "twice.yaml").write_text(JOB.format(name="berlin"))
    (jobs / "notes.txt").write_text("not a job")
    return parse(jobs, tmp_path_factory.mktemp("home"))


def test_parsing_loads_nothing_heavy(parsed: dict[str, Any]) -> None:
    assert not set(HEAVY) & set(parsed["modules"])
    assert parsed["pipeline"] == sorted(
        ["compile", "compile.neuron_settings", "compile.shapes", "compile.toolchains", "pipeline"]
        + [
            f"pipeline.{name}"
            for name in (
                "airflow_task",
                "errors",
                "job",
                "job_folder",
                "job_generate",
                "job_neuron",
                "job_output",
                "job_values",
                "job_yaml",
                "processes",
                "splits",
            )
        ]
    )


def test_one_dag_per_good_job_file(parsed: dict[str, Any]) -> None:
    assert set(parsed["dags"]) == {"reviews_sentiment", "reviews_summary", "berlin", "by_hand"}


def test_bad_job_files_are_one_visible_error_beside_the_dags(parsed: dict[str, Any]) -> None:
    """Of another file than the DAGs': Airflow unschedules every DAG of a file that has an import error."""
    ((file, text),) = parsed["errors"].items()
    assert Path(file).name == "lengthwise_job_errors.py"
    assert re.search(r"broken\.yaml: timezone: unknown time zone 'Mars/Base'", text)
    assert re.search(r"not_yaml\.yaml: not valid YAML", text)
    assert re.search(r"twice\.yaml: name: 'berlin' is taken by .*berlin\.yaml", text)


def test_a_missing_folder_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    seen = parse(tmp_path / "nowhere", tmp_path / "home")
    assert seen["dags"] == {}
    assert re.search(r"nowhere: there is no such folder; set LENGTHWISE_JOBS", "".join(seen["errors"].values()))


def test_the_repositorys_own_jobs_have_no_error() -> None:
    folder = read_job_folder(ROOT / "jobs")
    assert folder.errors == {}
    assert folder.jobs


def test_the_steps_are_tasks_in_order(parsed: dict[str, Any]) -> None:
    tasks = parsed["dags"]["berlin"]["tasks"]
    assert {name: task["after"] for name, task in tasks.items()} == {
        "snapshot": [],
        "tokenize": ["snapshot"],
        "plan": ["snapshot", "tokenize"],
        "compile": ["plan"],
        "infer": ["compile", "plan"],
        "publish": ["infer", "plan", "snapshot"],
        "commit": ["plan", "publish"],
        "report": ["commit", "plan"],
    }
    assert [name for name, task in tasks.items() if task["mapped"]] == ["tokenize", "compile", "infer", "publish"]
    assert [name for name, task in tasks.items() if task["pool"] == "cores"] == ["infer"]
    assert [name for name, task in tasks.items() if task["queue"] == "accelerators"] == ["compile", "infer"]
    assert {name: task["outlets"] for name, task in tasks.items() if task["outlets"]} == {"commit": ["berlin"]}
    assert {task["retries"] for task in tasks.values()} == {2}
    assert all(task["fails"] == ["StepRefusedError"] for task in tasks.values())


def test_schedule_params_and_docs_come_from_the_job(parsed: dict[str, Any]) -> None:
    berlin, by_hand = parsed["dags"]["berlin"], parsed["dags"]["by_hand"]
    assert berlin["timetable"] == ["CronDataIntervalTimetable", "Europe/Berlin"]
    assert by_hand["timetable"][0] == "NullTimetable"
    assert berlin["catchup"] is False
    assert berlin["start"] == "2025-12-31T23:00:00+00:00"  # midnight in Berlin
    assert berlin["tags"] == ["classify", "lengthwise", "openvino"]
    assert by_hand["description"] == "30 1 * * *"
    assert "s3://lake/in/ds={ds}/" in berlin["doc"]
    assert "s3://lake/berlin" in berlin["doc"]
    dates = berlin["params"]["partition_date"]
    assert (dates["type"], dates["format"], dates["default"]) == (["null", "string"], "date", None)
    assert berlin["params"]["fresh"]["default"] is False
    assert berlin["params"]["retry_rejects"]["default"] is False


BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("asked", "key", "interval_start", "run_after", "zone", "night"),
    [
        # A date that was asked for wins over everything.
        ("2026-11-01", "2026-11-02", at("2026-11-24T02:00"), at("2026-11-25T02:00"), UTC, "2026-11-01"),
        # Then the run's partition key.
        (None, "2026-11-02", at("2026-11-24T02:00"), at("2026-11-25T02:00"), UTC, "2026-11-02"),
        # A scheduled run or one of a backfill: the day that its interval starts on.
        (None, None, at("2026-11-24T02:00"), at("2026-11-25T02:00"), UTC, "2026-11-24"),
        ("", "", at("2026-11-24T02:00"), at("2026-11-25T02:00"), UTC, "2026-11-24"),
        # 00:30 in Berlin is the day before in UTC; the schedule is written in Berlin's time.
        (None, None, at("2026-11-23T23:30"), at("2026-11-24T23:30"), BERLIN, "2026-11-24"),
        (None, None, at("2026-11-23T23:30"), at("2026-11-24T23:30"), UTC, "2026-11-23"),
        # Summer time begins at 01:00 UTC on 2026-03-29.
        (None, None, at("2026-03-28T23:30"), at("2026-03-29T22:30"), BERLIN, "2026-03-29"),
        # Triggered without a logical date: the day before the run, in the job's zone.
        (None, None, None, at("2026-11-25T00:10"), UTC, "2026-11-24"),
        (None, None, None, at("2026-11-24T23:10"), BERLIN, "2026-11-24"),
        (None, None, None, at("2027-01-01T12:00"), UTC, "2026-12-31"),
    ],
)
def test_the_night_of_a_run(
    asked: str | None, key: str | None, interval_start: datetime | None, run_after: datetime, zone: Any, night: str
) -> None:
    assert partition_date(asked, key, interval_start, run_after, zone) == night


@pytest.mark.parametrize("value", ["yesterday", "2026-13-01", "2026-11-31", "20261101", "2026-1-1", "2026-11-01T00:00"])
def test_a_night_that_is_no_date_is_refused(value: str) -> None:
    with pytest.raises(StepRefusedError, match="partition_date must be a date"):
        partition_date(value, None, None, at("2026-11-25T00:10"), UTC)
    with pytest.raises(StepRefusedError, match="partition key must be a date"):
        partition_date(None, value, None, at("2026-11-25T00:10"), UTC)


@pytest.mark.parametrize(("count", "tasks"), [(0, 1), (1, 1), (7, 7), (1000, 1000), (50_000, MAX_MAPPED_TASKS)])
def test_fan_out_is_bounded_and_never_empty(count: int, tasks: int) -> None:
    parts = fan_out(count)
    assert [part["index"] for part in parts] == list(range(tasks))
    assert {part["of"] for part in parts} == {tasks}


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_the_last_line_is_the_result_and_the_others_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    code = "import sys; print('one'); print('two: 100%'); print('warned', file=sys.stderr); print('{\"rows\": 3}')"
    with caplog.at_level("INFO", "lengthwise.step"):
        assert run_process("step x", python(code)) == {"rows": 3}
    logged = [record.getMessage() for record in caplog.records]
    assert {"one", "two: 100%", "warned"} <= set(logged)
    assert '{"rows": 3}' not in logged


@pytest.mark.parametrize("code", [2, 3, 4])
def test_a_refusal_is_not_retried(code: int) -> None:
    program = f"import sys; print('nothing yet'); print('column is missing', file=sys.stderr); sys.exit({code})"
    with pytest.raises(StepRefusedError, match=rf"(?s)step x ended with exit code {code} .*column is missing"):
        run_process("step x", python(program))


@pytest.mark.parametrize("end", ["sys.exit(1)", "sys.exit(5)", "sys.exit(6)", "os.kill(os.getpid(), 9)"])
def test_any_other_failure_is_retried(end: str) -> None:
    program = f"import os, sys; print('no route to the store', file=sys.stderr, flush=True); {end}"
    with pytest.raises(StepFailedError, match=r"(?s)step x .*(exit code [156]|signal 9).*no route to the store"):
        run_process("step x", python(program))


@pytest.mark.parametrize("line", ["", "done", "[1, 2]", "{broken"])
def test_a_result_that_is_no_object_is_a_failure(line: str) -> None:
    with pytest.raises(StepFailedError, match="no JSON object"):
        run_process("step x", python(f"print({line!r})"))


def test_much_output_on_both_streams_does_not_block(caplog: pytest.LogCaptureFixture) -> None:
    code = "import sys\nfor n in range(20000): print('o' * 20); print('e' * 20, file=sys.stderr)\nprint('{}')"
    with caplog.at_level("CRITICAL", "lengthwise.step"):
        assert run_process("step x", python(code)) == {}


def test_a_step_does_not_see_airflows_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "secret")
    monkeypatch.setenv("AIRFLOW_CONN_AWS", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "here")
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    seen = run_process("step x", python(code))
    assert not [name for name in seen if "AIRFLOW" in name]
    assert seen["AWS_DEFAULT_REGION"] == "here"


def test_sigterm_reaches_the_step_and_is_waited_for(tmp_path: Path) -> None:
    """As when a worker host shuts down: the task's process is signalled, the step ends first and says so."""
    step = (
        "import os, pathlib, signal, sys, time\n"
        "def end(*_):\n"
        "    pathlib.Path(sys.argv[1], 'ended').write_text('cleanly')\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "pathlib.Path(sys.argv[1], 'pid.new').write_text(str(os.getpid()))\n"
        "os.rename(f'{sys.argv[1]}/pid.new', f'{sys.argv[1]}/pid')\n"
        "time.sleep(600)\n"
    )
    task = (
        "import signal, sys\nfrom pipeline.airflow_task import run_process\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"  # Airflow's task process has a handler that goes on
        f"run_process('step x', [sys.executable, '-c', {step!r}, sys.argv[1]])"
    )
    with subprocess.Popen(
        [*python(task), str(tmp_path)], stderr=subprocess.PIPE, text=True, cwd=ROOT, process_group=0
    ) as runner:
        deadline = time.monotonic() + 240
        while not (tmp_path / "pid").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        runner.send_signal(signal.SIGTERM)
        assert runner.stderr is not None
        said = runner.stderr.read()
        assert runner.wait(60) == 1
    assert (tmp_path / "ended").read_text() == "cleanly"
    assert "StepFailedError: step x ended with exit code 143" in said
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
