"""`lengthwise step ...`: one step of a run as a process, which is how Airflow's tasks and `lengthwise run` start it.

The last line on stdout is the step's result, one JSON object; progress and errors go to stderr.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cores import ONE_THREAD
from pipeline.terminal import Ds, Fresh, make_context, make_run_context, show

app = typer.Typer(help="One step of a run, as Airflow's tasks call it; the last line of stdout is its JSON result.")

Job = Annotated[Path, typer.Option("--job", metavar="FILE")]
Snapshot = Annotated[str, typer.Option("--snapshot", metavar="URI")]
Run = Annotated[str, typer.Option("--run", metavar="URI")]
Index = Annotated[int, typer.Option("--index", min=0)]
Ordered = Annotated[bool, typer.Option("--ordered", help="also where the job says compile: never")]
Verify = Annotated[bool, typer.Option("--verify", help="compile nothing; prove what was compiled without a device")]
Of = Annotated[int, typer.Option("--of", min=1)]
Retry = Annotated[bool, typer.Option("--retry-rejects", help="for the rejects of the published partition alone")]
RetryOf = Annotated[str | None, typer.Option("--retry-of", metavar="FINGERPRINT", help="of the published run")]


@app.command()
def snapshot(job: Job, ds: Ds, fresh: Fresh = False, retry: Retry = False) -> None:
    """List and pin the night's input; a job that may not compile has its artifacts checked first."""
    from pipeline import building, steps

    context = make_context(job, ds)
    steps.check(context)
    if fresh:
        steps.forget(context)
    if context.job.compile == "never":
        building.require_frozen_artifacts(context)
    _print(steps.snapshot(context, retry=retry))


@app.command()
def tokenize(job: Job, ds: Ds, snapshot: Snapshot, index: Index = 0, of: Of = 1, retry_of: RetryOf = None) -> None:
    """Tokenise splits index, index + of, ..."""
    from pipeline import steps

    _print(steps.tokenize(make_context(job, ds), snapshot, index, of, retry_of=retry_of))


@app.command()
def plan(job: Job, ds: Ds, snapshot: Snapshot, retry_of: RetryOf = None) -> None:
    """Choose shapes and cut shards."""
    from pipeline import steps

    _print(steps.plan(make_context(job, ds), snapshot, retry_of=retry_of))


@app.command("compile")
def build(
    job: Job, ds: Ds, run: Run, index: Index = 0, of: Of = 1, ordered: Ordered = False, verify: Verify = False
) -> None:
    """Build the missing ones among the artifacts of shapes index, index + of, ..."""
    from pipeline import steps

    _print(steps.compile_artifacts(make_context(job, ds), run, index, of, ordered=ordered, verify=verify))


@app.command()
def infer(job: Job, ds: Ds, run: Run, index: Index = 0, of: Of = 1) -> None:
    """Work as one of the workers, on a core of its own."""
    os.environ.update(ONE_THREAD)  # before any runtime is imported
    from pipeline import steps

    _print(steps.infer(make_context(job, ds), run, index, of))


@app.command(hidden=True)
def piece(
    run: Run,
    shard: Annotated[int, typer.Option("--shard", min=0)],
    start: Annotated[int, typer.Option("--start", min=0)],
    stop: Annotated[int, typer.Option("--stop", min=0)],
) -> None:
    """Execute some rows of a shard that a worker died on; the worker starts it, on its core."""
    from pipeline import steps

    _print(steps.piece(make_run_context(run), run, shard, start, stop))


@app.command()
def publish(job: Job, ds: Ds, run: Run, index: Index = 0, of: Of = 1) -> None:
    """Stage the output parts of splits index, index + of, ..."""
    from pipeline import steps

    _print(steps.publish(make_context(job, ds), run, index, of))


@app.command()
def commit(job: Job, ds: Ds, run: Run) -> None:
    """Check conservation and make the partition visible."""
    from pipeline import steps

    _print(steps.commit(make_context(job, ds), run))


@app.command()
def report(job: Job, ds: Ds, run: Run) -> None:
    """Write report.json and the metrics row."""
    from pipeline import steps

    _print(steps.report(make_context(job, ds), run))


def _print(result: dict[str, object]) -> None:
    show(result, as_json=True, view=str)
