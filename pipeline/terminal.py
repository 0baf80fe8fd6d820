"""How commands meet the terminal: their common options, lines of progress, results as text or as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.processes import ADVANCE_PREFIX, PARENT_VARIABLE
from pipeline.progress import Bar, no_bar

if TYPE_CHECKING:
    from pipeline.context import Context

JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="job file, for example jobs/reviews.yaml")]
Ds = Annotated[str, typer.Option("--ds", metavar="DATE", help="partition date, YYYY-MM-DD")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object on stdout instead of text")]
Fresh = Annotated[bool, typer.Option("--fresh", help="forget the finished work of this partition and start over")]


def make_context(job_file: Path, ds: str, **overrides: Any) -> Context:
    """The context of a command; `overrides` replace fields of the job. Raises JobError."""
    from compile.lean_imports import arrow_without_pandas
    from pipeline.context import Context, check_ds, default_cache_dir
    from pipeline.job import load_job
    from pipeline.objects import Objects

    arrow_without_pandas()
    job = load_job(job_file).model_copy(update=overrides)
    return Context(job, check_ds(ds), Objects(), default_cache_dir(), say, advance)


def make_run_context(run_uri: str) -> Context:
    """The context of a run that was planned before: its own job, without the job file."""
    from compile.lean_imports import arrow_without_pandas
    from pipeline.context import Context, default_cache_dir
    from pipeline.objects import Objects
    from pipeline.run_plan import load_run

    arrow_without_pandas()
    objects = Objects()
    planned = load_run(objects, run_uri)
    return Context(planned.job, planned.ds, objects, default_cache_dir(), say, advance)


def say(message: str) -> None:
    """One line of progress, for a person or a task log."""
    print(message, file=sys.stderr, flush=True)  # noqa: T201 - a command line writes to the terminal


def advance(rows: int) -> None:
    """To the bar of the parent process, when there is one."""
    if PARENT_VARIABLE in os.environ:
        say(f"{ADVANCE_PREFIX}{rows}")


def show(value: dict[str, Any], as_json: bool, view: Callable[[Any], Any]) -> None:
    """The result of a command on stdout."""
    from rich.console import Console

    if as_json:
        print(json.dumps(value), flush=True)  # noqa: T201 - what --json is for
    else:
        Console(width=None if sys.stdout.isatty() else 140).print(view(value))


def chosen_bar(as_json: bool) -> Bar:
    """A bar on a terminal, plain lines in a log."""
    return _bar if sys.stderr.isatty() and not as_json else no_bar


@contextlib.contextmanager
def _bar(total_rows: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("infer"), BarColumn(), MofNCompleteColumn(), TextColumn("rows"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("infer", total=total_rows)
        yield lambda rows: progress.advance(bar, rows)
