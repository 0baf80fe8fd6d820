"""The eight steps as functions of plain arguments and results: what `lengthwise run` and the DAG's tasks both call."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.building import compile_run, missing_shapes
from pipeline.commit import commit_run
from pipeline.context import Context
from pipeline.cores import available_cores, leased_core, sweep_locks
from pipeline.declared_schema import check_schema
from pipeline.errors import StorageError, WorkerError
from pipeline.events import EventLog, now, timed
from pipeline.generation import start_over
from pipeline.infer import infer_piece, infer_shards
from pipeline.layout import shard_object, snapshot_events_folder
from pipeline.manifest import Manifest, committed
from pipeline.models import job_model
from pipeline.planning import plan_run
from pipeline.publish import publish_split
from pipeline.published import is_published
from pipeline.report import load_report, write_report
from pipeline.retry import retriable
from pipeline.run_plan import RunPlan, load_run
from pipeline.shards import places_by_split
from pipeline.snapshot import Snapshot, load_snapshot, take_snapshot
from pipeline.sweep import partitions, sweep_partition, sweep_run
from pipeline.tables import table_format
from pipeline.tokenize import tokenize_split, tokens_key
from pipeline.workloads import load_workload


@contextmanager
def _snapshot_step(
    context: Context,
    step: str,
    uri: str,
    retry_of: str | None,
    index: int = 0,
    started: float | None = None,
) -> Iterator[dict[str, Any]]:
    """Events before the run has a fingerprint lie beside the snapshot."""
    log = EventLog(context.objects, snapshot_events_folder(uri, retry_of), step=step, index=index)
    with timed(log, step, started) as fields:
        yield fields


@contextmanager
def _run_step(context: Context, step: str, plan: RunPlan, index: int = 0) -> Iterator[tuple[EventLog, dict[str, Any]]]:
    log = EventLog(context.objects, f"{plan.uri}/events/", step=step, index=index)
    with timed(log, step) as fields:
        yield log, fields


def _resume(context: Context, run_uri: str) -> tuple[Context, RunPlan]:
    """The run and its own job: a job file that was edited since the run was planned does not mix into it."""
    planned = load_run(context.objects, run_uri)
    return dataclasses.replace(context, job=planned.job, ds=planned.ds), planned


@contextmanager
def _unless_published(context: Context, plan: RunPlan) -> Iterator[None]:
    """The body, unless another process publishes this very run meanwhile, and sweeps what the body needs."""
    try:
        yield
    except (FileNotFoundError, WorkerError) as error:
        if is_published(context, plan):
            context.say(f"ds={context.ds}: another process has published this run meanwhile")
        elif isinstance(error, FileNotFoundError):
            raise StorageError(
                f"{error} is gone: it was deleted, or swept as work that nobody had touched for output.grace_hours; "
                "run again"
            ) from error
        else:
            raise


def check(context: Context) -> None:
    """Before any work: whether the night would have the columns that the published ones have. Raises JobError."""
    _, model = job_model(context)
    check_schema(context, model)


def snapshot(context: Context, *, retry: bool = False) -> dict[str, Any]:
    """Pin the night's input: {snapshot, splits, objects, size_bytes, workers, retry_of}.

    With `retry`, `retry_of` is the published run whose rejects can be run again. Raises JobError when they cannot.
    """
    started = now()
    uri, taken = take_snapshot(context)
    # Where its event goes is known only now: the folder is named by what was found.
    retry_of = retriable(context, taken).fingerprint if retry else None
    with _snapshot_step(context, "snapshot", uri, retry_of, started=started):
        size = sum(info.size_bytes for info in taken.objects)
    return {
        "snapshot": uri,
        "splits": len(taken.splits),
        "objects": len(taken.objects),
        "size_bytes": size,
        "workers": context.workers,
        "retry_of": retry_of,
    }


def tokenize(
    context: Context, snapshot_uri: str, index: int = 0, of: int = 1, *, retry_of: str | None = None
) -> dict[str, Any]:
    """Tokenise splits index, index + of, ...: {rows, rejects}. With `retry_of`, that published run's rejects alone."""
    taken = load_snapshot(context.objects, snapshot_uri)
    with _snapshot_step(context, "tokenize", snapshot_uri, retry_of, index) as fields:
        folder, model = job_model(context)
        tokenizer = load_workload(context.job.task).tokenizer(context, folder)
        tokens_uri = context.layout.tokens(context.ds, tokens_key(context, taken, model, retry_of), taken.generation)
        counts = [
            tokenize_split(context, taken, split, tokens_uri, tokenizer, model.vocab_size, retry_of)
            for split in taken.splits[index::of]
        ]
        result = {"rows": sum(item.rows for item in counts), "rejects": sum(item.rejects for item in counts)}
        fields.update(result)
    return result


def plan(context: Context, snapshot_uri: str, *, retry_of: str | None = None) -> dict[str, Any]:
    """Plan the run: {run, fingerprint, shards, shapes, missing, parts, workers, published}."""
    taken: Snapshot = load_snapshot(context.objects, snapshot_uri)
    with _snapshot_step(context, "plan", snapshot_uri, retry_of):
        planned = plan_run(context, snapshot_uri, taken, retry_of)
    return {
        "run": planned.uri,
        "fingerprint": planned.fingerprint,
        "shards": len(planned.shards),
        "shapes": [str(shape) for shape in planned.shape_plan.shapes],
        "parts": planned.parts,
        "workers": context.workers,
        "missing": [str(shape) for shape in missing_shapes(context, planned)],
        "published": is_published(context, planned),
    }


def compile_artifacts(
    context: Context, run_uri: str, index: int = 0, of: int = 1, *, ordered: bool = False, verify: bool = False
) -> dict[str, Any]:
    """Build, or with `verify` only prove, what the run lacks of shapes index, index + of, ...: {built, reused}."""
    context, planned = _resume(context, run_uri)
    with _run_step(context, "compile", planned, index) as (_, fields):
        result = compile_run(context, planned, index, of, ordered=ordered, verify=verify)
        fields.update(result)
    return result


def infer(context: Context, run_uri: str, index: int = 0, of: int = 1) -> dict[str, Any]:
    """Work as one of `of` workers on a leased core: {shards, rows, compilations}."""
    context, planned = _resume(context, run_uri)
    if is_published(context, planned) or not planned.shards:
        return {"shards": 0, "rows": 0, "compilations": 0}
    result = {"shards": 0, "rows": 0, "compilations": 0}
    lease = leased_core(available_cores(), context.say)
    with (
        _unless_published(context, planned),
        lease as core,
        _run_step(context, "infer", planned, index) as (log, fields),
    ):
        result = infer_shards(context, planned, index, of, core, log)
        fields.update(result, core=core)
    return result


def piece(context: Context, run_uri: str, shard: int, start: int, stop: int) -> dict[str, Any]:
    """Execute rows [start, stop) of a shard for the worker that started this process, on its core: {executions}."""
    context, planned = _resume(context, run_uri)
    with _run_step(context, "piece", planned, shard) as (log, _):
        return infer_piece(context, planned, shard, start, stop, log)


def publish(context: Context, run_uri: str, index: int = 0, of: int = 1) -> dict[str, Any]:
    """Stage the parts of splits index, index + of, ...: {rows, predicted, rejected}."""
    context, planned = _resume(context, run_uri)
    result = {"rows": 0, "predicted": 0, "rejected": 0}
    if is_published(context, planned):
        return result
    with _unless_published(context, planned), _run_step(context, "publish", planned, index) as (_, fields):
        _require_shards(context, planned)
        taken = load_snapshot(context.objects, planned.snapshot_uri)
        places = places_by_split(planned.shards)
        done = [
            publish_split(context, planned, taken, split, places.get(split, []))
            for split in range(index, planned.parts, of)
        ]
        result = {name: sum(getattr(item, name) for item in done) for name in ("rows", "predicted", "rejected")}
        fields.update(result)
    return result


def _require_shards(context: Context, planned: RunPlan) -> None:
    present = set(context.objects.list(f"{planned.uri}/shards/"))
    missing = [shard.index for shard in planned.shards if shard_object(planned.uri, shard.index) not in present]
    staged = len(context.objects.list(f"{planned.uri}/summaries/")) == planned.parts
    if missing and not staged:
        raise WorkerError(
            f"{len(missing)} of {len(planned.shards)} shards have no result yet; run the infer step again"
        )


def commit(context: Context, run_uri: str) -> dict[str, Any]:
    """Make the partition visible: {rows, predicted, rejected, uri, fingerprint}."""
    context, planned = _resume(context, run_uri)
    manifest: Manifest | None = None
    if not is_published(context, planned):  # else it leaves no event
        with _unless_published(context, planned), _run_step(context, "commit", planned):
            manifest = commit_run(context, planned)
    manifest = manifest or commit_run(context, planned)  # which finds it done
    table_format(context).tidy(context, manifest, _since(context))
    return {
        "rows": manifest.rows,
        "predicted": manifest.predicted,
        "rejected": manifest.rejected,
        "uri": context.layout.partition("predictions", context.ds),
        "fingerprint": manifest.fingerprint,
    }


def report(context: Context, run_uri: str) -> dict[str, Any]:
    """Write the report, sweep what the run no longer needs; the report of an earlier commit of the run stays."""
    context, planned = _resume(context, run_uri)
    found = load_report(context)
    manifest = committed(context)
    if manifest is None or not (manifest.holds(planned.fingerprint) or manifest.fingerprint == planned.retry_of):
        raise WorkerError(f"ds={context.ds}: run {planned.fingerprint} is not committed; run the commit step")
    if found is None or (found["fingerprint"], found.get("generation")) != (manifest.fingerprint, manifest.generation):
        shown = planned  # or a retry of its rejects
        if manifest.fingerprint != planned.fingerprint:
            shown = load_run(context.objects, context.layout.run(context.ds, manifest.fingerprint, manifest.generation))
        found = write_report(context, shown, manifest, found)
    sweep_run(context, planned)
    sweep_partition(context, _since(context))
    sweep_locks(planned.fingerprint, _since(context))
    return found


def _since(context: Context) -> float:
    """What was last used before this, in epoch seconds, is swept."""
    return time.time() - context.job.output.grace_hours * 3600


def sweep(context: Context) -> dict[str, int]:
    """Sweep every partition of the job: {partitions, removed}."""
    removed = 0
    found = partitions(context)
    for ds in found:
        own = dataclasses.replace(context, ds=ds)
        removed += sweep_partition(own, _since(context))
        manifest = committed(own)
        if manifest is not None:
            removed += table_format(own).tidy(own, manifest, _since(context))
    removed += table_format(context).tidy_all(context, _since(context))
    sweep_locks(None, _since(context))
    return {"partitions": len(found), "removed": removed}


def forget(context: Context) -> None:
    """Start the partition over: no finished work is found; what readers see stays until the new version replaces it."""
    start_over(context)
