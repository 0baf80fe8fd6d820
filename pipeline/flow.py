"""The whole flow on one machine: the steps in order, with workers as processes, one per core."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline import steps
from pipeline.building import discard_damaged_artifacts, missing_shapes, require_frozen_artifacts
from pipeline.child_errors import child_error, last_words
from pipeline.context import Context
from pipeline.cores import available_cores
from pipeline.errors import JobError
from pipeline.layout import shard_object
from pipeline.models import job_model
from pipeline.probing import wants_probe
from pipeline.processes import StepProcess
from pipeline.progress import Bar, no_bar
from pipeline.published import is_published
from pipeline.run_plan import load_run
from pipeline.toolchain import job_toolchain

_ROUNDS_WITHOUT_PROGRESS = 2
"""A worker that dies is replaced; rounds in which no shard is finished at all are not repeated beyond this."""


def prepare(context: Context, job_file: Path, *, retry: bool = False) -> dict[str, Any]:
    """Snapshot, tokenise and plan; the plan step's result. With `retry`, the published rejects alone."""
    taken = steps.snapshot(context, retry=retry)
    retry_of = taken["retry_of"]
    pinned = ("--snapshot", taken["snapshot"], *(["--retry-of", retry_of] if retry_of else []))
    _over_splits(context, job_file, "tokenize", pinned, taken["splits"])
    if retry:
        return steps.plan(context, taken["snapshot"], retry_of=retry_of)
    _, model = job_model(context)
    if not wants_probe(context, job_toolchain(context, model)):
        return steps.plan(context, taken["snapshot"])
    return _children(context, job_file, "plan", [("--snapshot", taken["snapshot"])])[0]


def run(context: Context, job_file: Path, bar: Bar = no_bar, *, retry: bool = False) -> dict[str, Any]:
    """All eight steps; returns the report. Safe to call again after any failure: finished work is reused.

    With `retry` they run the rejects of the published partition again and join them with it.
    """
    steps.check(context)
    if context.job.compile == "never":
        require_frozen_artifacts(context)
    planned = prepare(context, job_file, retry=retry)
    if planned["published"]:
        context.say(f"ds={context.ds} is published already with this fingerprint; nothing to do")
    else:
        build(context, job_file, planned["run"])
        infer(context, job_file, planned["run"], bar)
        _over_splits(context, job_file, "publish", ("--run", planned["run"]), planned["parts"])
        steps.commit(context, planned["run"])
    return steps.report(context, planned["run"])


def build(
    context: Context, job_file: Path, run_uri: str, *, ordered: bool = False, verify: bool = False
) -> dict[str, Any]:
    """The compile step, where something is missing: in as many processes as there are workers.

    `ordered` is an explicit `lengthwise compile`: it builds for a job that may not compile by itself, and mends. With
    `verify` it only proves what was compiled elsewhere.
    """
    planned = load_run(context.objects, run_uri)
    if ordered:
        discard_damaged_artifacts(context, planned)
    missing = missing_shapes(context, planned)
    count = min(context.workers, len(missing))
    flags = [name for name, given in (("--ordered", ordered), ("--verify", verify)) if given]
    options = ("--run", run_uri, *flags, "--of", str(count))
    shares = [(*options, "--index", str(index)) for index in range(count)]
    _children(context, job_file, "compile", shares)
    return {"built": len(missing), "reused": len(planned.artifacts) - len(missing)}


def _over_splits(context: Context, job_file: Path, step: str, given: Sequence[str], splits: int) -> None:
    """Tokenise or publish, in as many processes as there are workers and splits; the threads of all fill the cores."""
    count = max(1, min(context.workers, splits))
    threads = str(max(1, len(available_cores()) // count))
    shares = [(*given, "--index", str(index), "--of", str(count)) for index in range(count)]
    _children(context, job_file, step, shares, {"RAYON_NUM_THREADS": threads})


def _children(
    context: Context,
    job_file: Path,
    step: str,
    shares: Sequence[Sequence[str]],
    environment: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """A step in processes of their own, one per share: what it holds does not stay in memory after it."""
    processes = [
        StepProcess(_arguments(context, job_file, step, *share), context.say, lambda rows: None, environment)
        for share in shares
    ]
    ended = _wait_all(processes)
    for code, _, process in ended:
        if code:
            raise child_error(step, code, process)
    return [result for _, result, _ in ended]


def infer(context: Context, job_file: Path, run_uri: str, bar: Bar = no_bar) -> None:
    """Workers until every shard has its result; a worker that dies is replaced, what it had finished stays."""
    planned = load_run(context.objects, run_uri)
    missing = _missing(context, run_uri)
    fruitless = 0
    with bar(sum(planned.shards[index].rows for index in missing)) as advance, _stop_told(context, job_file, run_uri):
        while missing:
            count = min(context.workers, len(missing))
            shares = [("--run", run_uri, "--index", str(index), "--of", str(count)) for index in range(count)]
            processes = [
                StepProcess(_arguments(context, job_file, "infer", *share), context.say, advance) for share in shares
            ]
            failures = [(code, process) for code, _, process in _wait_all(processes) if code]
            before, missing = missing, _missing(context, run_uri)
            fruitless = fruitless + 1 if len(missing) == len(before) else 0
            if missing and (fruitless >= _ROUNDS_WITHOUT_PROGRESS or _final(failures)):
                code, process = failures[0] if failures else (1, processes[0])
                raise child_error("infer", code, process, f"{len(missing)} shards are left; ")
            if missing:
                told = f": {last_words(*failures[0])}" if failures else ""
                context.say(f"infer: a worker ended early; {len(missing)} shards are left, starting again{told}")


@contextmanager
def _stop_told(context: Context, job_file: Path, run_uri: str) -> Iterator[None]:
    """Who stops the workers is told what they leave to the next run."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        left, shards = len(_missing(context, run_uri)), len(load_run(context.objects, run_uri).shards)
        context.say(
            f"infer: {shards - left} of {shards} shards are finished and kept; "
            f"lengthwise run {job_file} --ds {context.ds} does the other {left}"
        )
        raise


def _wait_all(processes: list[StepProcess]) -> list[tuple[int, dict[str, Any], StepProcess]]:
    """Exit code and result of each; whatever interrupts the waiting ends them all."""
    try:
        return [(*process.wait(), process) for process in processes]
    except BaseException:
        for process in processes:  # all of them first, so that they end together
            process.ask_to_end()
        for process in processes:
            process.stop()
        raise


def _final(failures: list[tuple[int, StepProcess]]) -> bool:
    """A wrong job or an unfit artifact stays so; a signal or a storage error may pass."""
    return any(code in (JobError.exit_code, 4) for code, _ in failures)


def _missing(context: Context, run_uri: str) -> list[int]:
    planned = load_run(context.objects, run_uri)
    if is_published(context, planned):
        return []  # by another process, meanwhile, which has swept the shards
    present = set(context.objects.list(f"{run_uri}/shards/"))
    return [shard.index for shard in planned.shards if shard_object(run_uri, shard.index) not in present]


def _arguments(context: Context, job_file: Path, step: str, *arguments: str) -> list[str]:
    return [step, "--job", str(job_file), "--ds", context.ds, *arguments]
