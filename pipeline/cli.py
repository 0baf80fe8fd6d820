"""The `lengthwise` command: arguments in, exit code out. Everything it does lies in other modules."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from pipeline import cli_artifacts, cli_bench, cli_serving, cli_steps, cli_tables
from pipeline.processes import PARENT_VARIABLE, die_with_parent
from pipeline.stopping import end_on_signals
from pipeline.terminal import Ds, Fresh, JobFile, Json, chosen_bar, make_context, say, show

EXIT_CODES = """
Exit codes: 0 done; 1 unexpected error; 2 the job file or an argument is wrong; 3 the data broke the reject budget;
4 an artifact is missing or unfit; 5 the object store, SageMaker or the local disk; 6 a worker died, or the device, an
endpoint or a transform job failed; 7 rows in and out do not add up; 130 interrupted, 143 terminated (run again to
continue).
"""

_STOPPED = {130: "interrupted", 143: "terminated"}
_DISK_ERRORS = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "EIO", "ENOTDIR", "EEXIST", "EISDIR")
}
"""Of the folders on this machine that a step needs: mend them, run again."""

app = typer.Typer(
    name="lengthwise",
    help="Nightly batch inference over datasets in S3, in planned static shapes.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(cli_artifacts.app, name="artifacts")
app.add_typer(cli_steps.app, name="step")
cli_tables.add_to(app)
cli_bench.add_to(app)
cli_serving.add_to(app)


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
    context = make_context(job, ds, **overrides, **({"compile": "never"} if no_compile else {}))
    if fresh:
        steps.check(context)
        steps.forget(context)
    report = flow.run(context, job, chosen_bar(as_json))
    show(report, as_json, render.report_view)


@app.command("retry-rejects")
def retry_rejects(
    job: JobFile,
    ds: Ds,
    workers: Annotated[int | None, typer.Option(min=1, max=1000, help="instead of the job's workers")] = None,
    no_compile: Annotated[bool, typer.Option("--no-compile", help="fail instead of compiling a missing shape")] = False,
    as_json: Json = False,
) -> None:
    """Run the rejects of a published night again; rows that are predicted now join the partition, in input order."""
    from pipeline import flow, render

    overrides: dict[str, Any] = {"workers": workers} if workers else {}
    context = make_context(job, ds, **overrides, **({"compile": "never"} if no_compile else {}))
    show(flow.run(context, job, chosen_bar(as_json), retry=True), as_json, render.report_view)


@app.command()
def plan(
    job: JobFile,
    ds: Ds,
    picture: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="draw lengths, shapes and padding")] = None,
    as_json: Json = False,
) -> None:
    """Tokenise a night and show its shape plan beside the alternatives; nothing is published.

    A job's first plan times a few shapes on this machine, and keeps none of them.
    """
    from pipeline import flow, plan_comparison, render
    from pipeline.errors import JobError

    context = make_context(job, ds)
    if picture and (picture.suffix != ".svg" or not picture.resolve().parent.is_dir()):
        raise JobError(f"--picture {picture}: give a file that ends in .svg, in a folder that exists")
    planned = flow.prepare(context, job)
    found = plan_comparison.compare(context, planned["run"])
    if picture:
        picture.write_text(found.picture())
    show(planned | found.to_json(), as_json, lambda _: render.plan_view(found))


@app.command("compile")
def compile_(
    job: JobFile,
    ds: Ds,
    verify: Annotated[
        bool, typer.Option("--verify", help="compile nothing; prove what was compiled on a host without the device")
    ] = False,
    as_json: Json = False,
) -> None:
    """Build the artifacts that a night's shape plan needs and prove them on its rows."""
    from pipeline import flow

    context = make_context(job, ds)
    result = flow.build(context, job, flow.prepare(context, job)["run"], ordered=True, verify=verify)
    verb = "proved" if verify else "built"
    show(result, as_json, lambda found: f"{found['built']} artifacts {verb}, {found['reused']} reused")


@app.command()
def report(job: JobFile, ds: Ds, as_json: Json = False) -> None:
    """Show the throughput report of a published night."""
    from pipeline import render
    from pipeline.errors import JobError
    from pipeline.report import load_report

    found = load_report(make_context(job, ds))
    if found is None:
        raise JobError(f"ds={ds} was not published yet; run: lengthwise run {job} --ds {ds}")
    show(found, as_json, render.report_view)


@app.command()
def validate(job: JobFile, as_json: Json = False) -> None:
    """Check a job file and print it with its defaults; nothing is read or run."""
    from pipeline.job import load_job

    loaded = load_job(job)
    fields = loaded.model_dump(mode="json")
    show(fields, as_json, lambda _: f"{job} is valid: job {loaded.name}, task {loaded.task} on {loaded.target}")


@app.command()
def doctor(as_json: Json = False) -> None:
    """Show what this machine can run, and why a target is unavailable."""
    from pipeline import render
    from pipeline.doctor import examine

    show(examine(), as_json, render.doctor_view)


def main() -> NoReturn:
    """Run the command; turn the errors a user can act on into a message and an exit code."""
    die_with_parent()
    end_on_signals()
    try:
        app()
    except SystemExit as ended:
        if ended.code in _STOPPED and PARENT_VARIABLE not in os.environ:  # typer turns a KeyboardInterrupt into it, too
            _fail(f"{_STOPPED[ended.code]}; what is finished is kept, run the same command to continue", ended.code)
        raise
    except Exception as error:
        known = _exit_code(error)
        if known is None:
            raise
        sys.exit(_fail(_message(error), known))
    raise AssertionError("unreachable: app() exits")


def _fail(message: str, code: int) -> int:
    for line in message.splitlines():
        say(f"error: {line}")
    return code


def _message(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    return (
        f"{error.filename or 'a local folder'}: {error.strerror}; check the space and the permissions there "
        "(LENGTHWISE_CACHE, LENGTHWISE_LOCK_DIR and TMPDIR name the folders), then run again"
    )


def _exit_code(error: Exception) -> int | None:
    """None for an error that is a defect and deserves its traceback."""
    from compile.errors import ArtifactError, CompileError, DeviceError, TargetUnavailable
    from pipeline.errors import LengthwiseError, StorageError

    if isinstance(error, OSError):
        return StorageError.exit_code if error.errno in _DISK_ERRORS else None
    if isinstance(error, LengthwiseError):
        return error.exit_code
    if isinstance(error, ArtifactError | CompileError | TargetUnavailable):
        return 4
    return 6 if isinstance(error, DeviceError) else None
