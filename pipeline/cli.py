"""The `lengthwise` command: arguments in, exit code out. Everything it does lies in other modules."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from pipeline.processes import ADVANCE_PREFIX, die_with_parent

EXIT_CODES = """
Exit codes: 0 done; 1 unexpected error; 2 the job file or an argument is wrong; 3 the data broke the reject budget;
4 an artifact is missing or unfit; 5 the object store; 6 a worker died or the device failed; 7 rows in and out do not
add up; 130 interrupted (run again to continue).
"""

_INTERRUPTED = 130

app = typer.Typer(
    name="lengthwise",
    help="Nightly batch inference over datasets in S3, in planned static shapes.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
step_app = typer.Typer(help="One step of a run, as Airflow's tasks call it; the result is one JSON line.")
app.add_typer(step_app, name="step")

JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="job file, for example jobs/reviews.yaml")]
Ds = Annotated[str, typer.Option("--ds", metavar="DATE", help="partition date, YYYY-MM-DD")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object on stdout instead of text")]
Fresh = Annotated[bool, typer.Option("--fresh", help="forget the finished work of this partition and start over")]
StepJob = Annotated[Path, typer.Option("--job", metavar="FILE")]
Snapshot = Annotated[str, typer.Option("--snapshot", metavar="URI")]
Run = Annotated[str, typer.Option("--run", metavar="URI")]
Index = Annotated[int, typer.Option("--index", min=0)]
Of = Annotated[int, typer.Option("--of", min=1)]


@app.command()
def run(
    job: JobFile,
    ds: Ds,
    workers: Annotated[int | None, typer.Option(min=1, max=1000, help="instead of the job's workers")] = None,
    no_compile: Annotated[bool, typer.Option("--no-compile", help="fail instead of compiling a missing shape")] = False,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Run a job for one date on this machine and print its report."""
    from pipeline import flow, render, steps

    overrides: dict[str, Any] = {"workers": workers} if workers else {}
    context = _context(job, ds, **overrides, **({"compile": "never"} if no_compile else {}))
    if fresh:
        steps.forget(context)
    report = flow.run(context, job, no_bar_or_bar(as_json))
    _show(report, as_json, render.report_view)


@app.command()
def plan(job: JobFile, ds: Ds, as_json: Json = False) -> None:
    """Tokenise a night and show its shape plan beside the alternatives; nothing is compiled or published."""
    from pipeline import flow, plan_comparison, render

    context = _context(job, ds)
    planned = flow.prepare(context)
    compared = plan_comparison.compare_plans(context, planned["run"])
    _show(planned | {"plans": plan_comparison.as_json(compared)}, as_json, lambda _: render.plan_view(compared))


@app.command("compile")
def compile_(job: JobFile, ds: Ds, as_json: Json = False) -> None:
    """Build the artifacts that a night's shape plan needs and prove them on its rows."""
    from pipeline import flow

    context = _context(job, ds)
    result = flow.build(context, job, flow.prepare(context)["run"])
    _show(result, as_json, lambda found: f"{found['built']} artifacts built, {found['reused']} reused")


@app.command()
def report(job: JobFile, ds: Ds, as_json: Json = False) -> None:
    """Show the throughput report of a published night."""
    from pipeline import render
    from pipeline.errors import JobError
    from pipeline.report import load_report

    found = load_report(_context(job, ds))
    if found is None:
        raise JobError(f"ds={ds} was not published yet; run: lengthwise run {job} --ds {ds}")
    _show(found, as_json, render.report_view)


@app.command()
def validate(job: JobFile, as_json: Json = False) -> None:
    """Check a job file and print it with its defaults; nothing is read or run."""
    from pipeline.job import load_job

    loaded = load_job(job)
    fields = loaded.model_dump(mode="json")
    _show(fields, as_json, lambda _: f"{job} is valid: job {loaded.name}, task {loaded.task} on {loaded.target}")


@app.command()
def doctor(as_json: Json = False) -> None:
    """Show what this machine can run, and why a target is unavailable."""
    from pipeline import render
    from pipeline.doctor import examine

    _show(examine(), as_json, render.doctor_view)


@step_app.command("snapshot")
def step_snapshot(job: StepJob, ds: Ds, fresh: Fresh = False) -> None:
    """List and pin the night's input."""
    from pipeline import steps

    context = _context(job, ds)
    if fresh:
        steps.forget(context)
    if context.job.compile == "never":
        from pipeline.building import require_frozen_artifacts

        require_frozen_artifacts(context)
    _result(steps.snapshot(context))


@step_app.command("tokenize")
def step_tokenize(job: StepJob, ds: Ds, snapshot: Snapshot, index: Index = 0, of: Of = 1) -> None:
    """Tokenise splits index, index + of, ..."""
    from pipeline import steps

    _result(steps.tokenize(_context(job, ds), snapshot, index, of))


@step_app.command("plan")
def step_plan(job: StepJob, ds: Ds, snapshot: Snapshot) -> None:
    """Choose shapes and cut shards."""
    from pipeline import steps

    _result(steps.plan(_context(job, ds), snapshot))


@step_app.command("compile")
def step_compile(job: StepJob, ds: Ds, run: Run) -> None:
    """Build missing artifacts."""
    from pipeline import steps

    _result(steps.compile_artifacts(_context(job, ds), run))


@step_app.command("infer")
def step_infer(job: StepJob, ds: Ds, run: Run, index: Index = 0, of: Of = 1) -> None:
    """Work as one of the workers, on a core of its own."""
    import os

    from pipeline.cores import ONE_THREAD

    os.environ.update(ONE_THREAD)  # before any runtime is imported
    from pipeline import steps

    _result(steps.infer(_context(job, ds), run, index, of))


@step_app.command("publish")
def step_publish(job: StepJob, ds: Ds, run: Run, index: Index = 0, of: Of = 1) -> None:
    """Stage the output parts of splits index, index + of, ..."""
    from pipeline import steps

    _result(steps.publish(_context(job, ds), run, index, of))


@step_app.command("commit")
def step_commit(job: StepJob, ds: Ds, run: Run) -> None:
    """Check conservation and make the partition visible."""
    from pipeline import steps

    _result(steps.commit(_context(job, ds), run))


@step_app.command("report")
def step_report(job: StepJob, ds: Ds, run: Run) -> None:
    """Write report.json and the metrics row."""
    from pipeline import steps

    _result(steps.report(_context(job, ds), run))


def _context(job_file: Path, ds: str, **overrides: Any) -> Any:
    from pipeline.context import Context, default_cache_dir
    from pipeline.flow import check_ds
    from pipeline.job import load_job
    from pipeline.objects import Objects

    job = load_job(job_file).model_copy(update=overrides)
    return Context(job, check_ds(ds), Objects(), default_cache_dir(), _say, _advance)


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)  # noqa: T201 - progress for a person or a task log


def _advance(rows: int) -> None:
    """To the parent's bar, when there is one."""
    import os

    from pipeline.processes import PARENT_VARIABLE

    if PARENT_VARIABLE in os.environ:
        _say(f"{ADVANCE_PREFIX}{rows}")


def _result(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)  # noqa: T201 - the contract of `step`: the last line of stdout


def _show(value: dict[str, Any], as_json: bool, view: Callable[[Any], Any]) -> None:
    from rich.console import Console

    if as_json:
        print(json.dumps(value))  # noqa: T201 - what --json is for
    else:
        Console(width=None if sys.stdout.isatty() else 140).print(view(value))


def no_bar_or_bar(as_json: bool) -> Any:
    """A progress bar on a terminal; in a log, plain lines are enough."""
    from pipeline.flow import no_bar

    return _bar if sys.stderr.isatty() and not as_json else no_bar


@contextlib.contextmanager
def _bar(total_rows: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("infer"), BarColumn(), MofNCompleteColumn(), TextColumn("rows"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("infer", total=total_rows)
        yield lambda rows: progress.advance(bar, rows)


def _terminated(number: int, frame: object) -> NoReturn:
    del frame
    sys.exit(128 + number)


def main() -> NoReturn:
    """Run the command; turn the errors a user can act on into a message and an exit code."""
    die_with_parent()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        app()
    except SystemExit as ended:
        if ended.code == _INTERRUPTED:  # typer has turned the KeyboardInterrupt into this
            _fail("interrupted; what is finished is kept, run the same command to continue", _INTERRUPTED)
        raise
    except Exception as error:
        known = _exit_code(error)
        if known is None:
            raise
        sys.exit(_fail(str(error), known))
    raise AssertionError("unreachable: app() exits")


def _fail(message: str, code: int) -> int:
    for line in message.splitlines():
        _say(f"error: {line}")
    return code


def _exit_code(error: Exception) -> int | None:
    """None for an error that is a defect and deserves its traceback."""
    from compile.errors import ArtifactError, CompileError, DeviceError, TargetUnavailable
    from pipeline.errors import LengthwiseError

    if isinstance(error, LengthwiseError):
        return error.exit_code
    if isinstance(error, ArtifactError | CompileError | TargetUnavailable):
        return 4
    return 6 if isinstance(error, DeviceError) else None
