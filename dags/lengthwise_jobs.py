"""Builds one Airflow DAG per job file. Parsed often and by every task: nothing heavy is imported here."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import pendulum
from airflow.sdk import (
    DAG,
    Asset,
    CronDataIntervalTimetable,
    ExceptionRetryPolicy,
    Param,
    RetryAction,
    RetryRule,
    get_current_context,
    get_parsing_context,
    task,
)

from pipeline.airflow_task import StepRefusedError, fan_out, partition_date, run_step
from pipeline.job import Job
from pipeline.job_folder import folder_from_environment, read_job_folder

POOL = "cores"
RETRY_POLICY = ExceptionRetryPolicy(
    rules=[RetryRule(exception=StepRefusedError, action=RetryAction.FAIL, reason="wrong input: a retry cannot help")]
)
PARAMS = {
    "partition_date": Param(
        None,
        type=["null", "string"],
        format="date",
        title="Partition date",
        description="The night to process, YYYY-MM-DD. Empty: the one that the run is scheduled for.",
    ),
    "fresh": Param(
        False,
        type="boolean",
        title="Start over",
        description="Forget the finished work of this night, which a run otherwise goes on from.",
    ),
    "retry_rejects": Param(
        False,
        type="boolean",
        title="Only the rejects",
        description="Run the rejects of the published night again, and join what is predicted now with it.",
    ),
}
DOC = """{description}

From `{input}` to `{output}`, with the model `{model}`.

Job file: `{file}`. Clearing a task, retrying and backfilling are safe: finished work is found and not done again, and
the same input gives the same bytes. To process one night by hand, trigger the DAG with a *Partition date*.
"""


DEFAULT_ARGS = {
    "retries": 2,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=10),
    "retry_policy": RETRY_POLICY,
}
Part = dict[str, Any]
"""What a mapped task is told: night, snapshot or run, its index, and of how many. Never rows: those lie in S3.

`multiple_outputs=False` below: what a task returns is one value, not one XCom (and one request) per key.
"""


def part_step(step: str, file: str, part: Part, kind: str) -> Part:
    """Run a mapped step, which the grid shows as for example `worker 1 of 2` (see map_index_template)."""
    cast("dict[str, Any]", get_current_context())["part"] = f"{kind} {part['index'] + 1} of {part['of']}"
    pinned = ("--run", part["run"]) if "run" in part else from_snapshot(part)
    return run_step(step, file, part["ds"], *pinned, "--index", str(part["index"]), "--of", str(part["of"]))


def from_snapshot(part: Part) -> tuple[str, ...]:
    """What a step before the plan is told: the pinned input, and of which published run only the rejects are wanted."""
    retry_of = part["retry_of"]
    return ("--snapshot", part["snapshot"], *(("--retry-of", retry_of) if retry_of else ()))


def run_wide_step(step: str, file: str, workers: list[Part]) -> Part:
    """Run a step that is there once per run."""
    return run_step(step, file, workers[0]["ds"], "--run", workers[0]["run"])


@task
def snapshot(file: str, timezone: str, **context: Any) -> list[Part]:
    params, run = context["params"], context["dag_run"]
    ds = partition_date(
        params["partition_date"], run.partition_key, run.data_interval_start, run.run_after, ZoneInfo(timezone)
    )
    options = {"--fresh": params["fresh"], "--retry-rejects": params["retry_rejects"]}
    pinned = run_step("snapshot", file, ds, *(option for option, wanted in options.items() if wanted))
    parts = fan_out(min(pinned["workers"], pinned["splits"]))
    return [part | {"ds": ds, "snapshot": pinned["snapshot"], "retry_of": pinned["retry_of"]} for part in parts]


@task(map_index_template="{{ part }}", multiple_outputs=False)
def tokenize(file: str, part: Part) -> Part:
    return part_step("tokenize", file, part, "splits")


@task
def plan(file: str, parts: list[Part]) -> list[Part]:
    """One entry per worker: the compile step is mapped over them, too, each building its share of the shapes."""
    ds = parts[0]["ds"]
    made = run_step("plan", file, ds, *from_snapshot(parts[0]))
    return [part | {"ds": ds, "run": made["run"]} for part in fan_out(made["workers"])]


@task(task_id="compile", map_index_template="{{ part }}", multiple_outputs=False)
def build_artifacts(file: str, part: Part) -> Part:
    return part_step("compile", file, part, "shapes")


@task(map_index_template="{{ part }}", multiple_outputs=False)
def infer(file: str, worker: Part) -> Part:
    return part_step("infer", file, worker, "worker")


@task(map_index_template="{{ part }}", multiple_outputs=False)
def publish(file: str, part: Part, workers: list[Part]) -> Part:
    return part_step("publish", file, part | {"run": workers[0]["run"]}, "splits")


@task(multiple_outputs=False)
def commit(file: str, workers: list[Part], asset: str) -> Part:
    published = run_wide_step("commit", file, workers)
    get_current_context()["outlet_events"][Asset(asset)].extra = {"ds": workers[0]["ds"], **published}
    return published


@task(multiple_outputs=False)
def report(file: str, workers: list[Part]) -> Part:
    return run_wide_step("report", file, workers)


def connect(job: Job, file: str) -> None:
    """The flow, in the DAG that is open. Only names and URIs pass from task to task."""
    queue = {"queue": job.queue} if job.queue else {}
    compile_queue = {"queue": job.compile_queue} if job.compile_queue else queue
    parts = snapshot(file=file, timezone=job.timezone)
    workers = plan(file=file, parts=cast(Any, parts))
    given: dict[str, Any] = {"file": file, "workers": workers}
    tokenized = tokenize.partial(file=file).expand(part=parts)
    compiled = build_artifacts.override(**compile_queue).partial(file=file).expand(part=workers)
    inferred = infer.override(pool=POOL, **queue).partial(file=file).expand(worker=workers)
    published = publish.partial(**given).expand(part=parts)
    committed = commit.override(outlets=[Asset(job.name)])(**given, asset=job.name)
    tokenized >> workers >> compiled >> inferred >> published >> committed >> report(**given)


def build(job: Job, job_file: Path) -> DAG:
    """The job's DAG: the steps of the flow as tasks, each of which runs one step in a process of its own."""
    about = {"input": job.input.uri, "output": job.output.uri, "model": job.model.uri, "file": job_file.name}
    start = job.start_date
    with DAG(
        dag_id=job.name,
        description=job.description,
        doc_md=DOC.format(description=job.description, **about),
        schedule=CronDataIntervalTimetable(job.schedule, timezone=job.timezone) if job.schedule else None,
        start_date=pendulum.datetime(start.year, start.month, start.day, tz=job.timezone),
        catchup=False,
        max_active_runs=3,
        params=PARAMS,
        tags=["lengthwise", job.task, job.target],
        default_args=DEFAULT_ARGS,
    ) as dag:
        connect(job, str(job_file))
    return dag


FOLDER = folder_from_environment(Path(__file__).parents[1] / "jobs")
# A task's process needs its own DAG only.
WANTED = get_parsing_context().dag_id
for path, found in read_job_folder(FOLDER).jobs.items():
    if WANTED in (None, found.name):
        globals()[f"dag_{found.name}"] = build(found, path)
