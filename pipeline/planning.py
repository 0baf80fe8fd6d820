"""Step 3, plan: add the counts up, choose or reuse the shape plan, cut shards, name the run by its fingerprint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compile.shapes import ShapePlan
from pipeline.batch_api.duplicates import find_duplicates
from pipeline.budget import check_budget
from pipeline.context import Context
from pipeline.digests import code_version, digest
from pipeline.frozen_plan import retry_shape_plan, tonights_shape_plan
from pipeline.job import Job
from pipeline.models import job_model
from pipeline.probing import probe
from pipeline.retry import base_version
from pipeline.run_plan import RunPlan, load_run, plan_object
from pipeline.shards import SHARD_SLOT_TOKENS, Shard, cut_shards, rows_per_shape
from pipeline.snapshot import Snapshot
from pipeline.tokenize import tokens_key
from pipeline.tokenized import SplitCounts, load_counts
from pipeline.toolchain import Toolchain, job_toolchain


def plan_run(context: Context, snapshot_uri: str, snapshot: Snapshot, retry_of: str | None = None) -> RunPlan:
    """Plan a tokenised snapshot; the same input, job and code always give the same plan under the same fingerprint.

    With `retry_of`, the rejects alone of that published run: no budget applies, for none of them can become more.
    """
    model_dir, model = job_model(context)
    tokens_uri = context.layout.tokens(context.ds, tokens_key(context, snapshot, model, retry_of), snapshot.generation)
    splits = [load_counts(context.objects, tokens_uri, split.index) for split in snapshot.splits]
    toolchain = job_toolchain(context, model)
    counts = length_counts(splits, context.job.max_length)
    if retry_of is None:
        check_budget(context.job.reject_budget, sum(split.rows for split in splits), [s.reasons for s in splits])
        probe(context, toolchain, model_dir, tokens_uri, splits)
        shape_plan, drift = tonights_shape_plan(context, toolchain, counts)
        offsets = row_offsets(snapshot, splits)
    else:
        shape_plan, drift = retry_shape_plan(context, toolchain, counts, retry_of), None
        offsets = tuple(map(tuple, base_version(context, retry_of).origin["row_offsets"]))
    artifacts, shards = (
        tuple(toolchain.spec(s).key for s in shape_plan.shapes),
        tuple(_shards(context.job, splits, shape_plan)),
    )
    plan = RunPlan(
        fingerprint=digest(_identity(context, snapshot, toolchain, artifacts, shards, retry_of)),
        job=context.job,
        ds=context.ds,
        snapshot_uri=snapshot_uri,
        tokens_uri=tokens_uri,
        model=model,
        precision=toolchain.precision,
        shape_plan=shape_plan,
        artifacts=artifacts,
        shards=shards,
        row_offsets=offsets,
        generation=snapshot.generation,
        drift=drift,
        retry_of=retry_of,
    )
    return _stored(context, plan, splits)


def _stored(context: Context, plan: RunPlan, splits: Sequence[SplitCounts]) -> RunPlan:
    if context.job.input.is_batch_api and plan.retry_of is None:
        _reject_duplicates(context, plan, splits)
    context.objects.put_new(plan_object(plan.uri), json.dumps(plan.to_json()).encode())
    shapes = plan.shape_plan.shapes
    context.say(
        f"plan: {sum(split.accepted for split in splits):,} rows in {len(plan.shards)} shards of "
        f"{len(shapes)} shapes ({', '.join(map(str, shapes))})"
    )
    return load_run(context.objects, plan.uri)


def _reject_duplicates(context: Context, plan: RunPlan, splits: Sequence[SplitCounts]) -> None:
    """Find the lines that repeat a custom_id; a night with too many of them is not generated."""
    found = find_duplicates(context.objects, plan.tokens_uri, len(splits), plan.uri)
    if found.rows:
        context.say(f"plan: {found.rows:,} lines repeat a custom_id")
        reasons = [*(split.reasons for split in splits), {"duplicate_id": found.accepted}]
        check_budget(context.job.reject_budget, sum(split.rows for split in splits), reasons)


def _shards(job: Job, splits: Sequence[SplitCounts], shape_plan: ShapePlan) -> list[Shard]:
    """A row that is given new tokens holds its slot for their length, too, and once for each of its samples."""
    rows = sum(split.accepted for split in splits)
    samples = max(1, -(-sum(split.samples for split in splits) // max(1, rows)))  # the mean, where rows ask themselves
    return cut_shards(splits, shape_plan, SHARD_SLOT_TOKENS // samples, job.new_tokens)


def _identity(
    context: Context,
    snapshot: Snapshot,
    toolchain: Toolchain,
    artifacts: tuple[str, ...],
    shards: Sequence[Shard],
    retry_of: str | None,
) -> dict[str, Any]:
    """Everything that can change an output byte."""
    return {
        "snapshot": snapshot.digest,
        "job": context.job.output_fields(),
        "model": toolchain.model.digest,
        "precision": toolchain.precision,
        "artifacts": artifacts,
        "rows_per_shape": rows_per_shape(shards, len(artifacts)),
        "code": code_version(),
        "retry_of": retry_of,
    }


def length_counts(splits: Sequence[SplitCounts], max_length: int) -> NDArray[np.int64]:
    """Rows per token length, int64 of shape (max_length + 1,)."""
    counts = np.zeros(max_length + 1, np.int64)
    for split in splits:
        counts[np.array(split.lengths, np.int64)] += np.array(split.counts, np.int64)
    return counts


def row_offsets(snapshot: Snapshot, splits: Sequence[SplitCounts]) -> tuple[tuple[int, ...], ...]:
    """Per split and piece, how many rows of its object lie before it: what makes a row number global."""
    seen = [0] * len(snapshot.objects)
    offsets = []
    for split, counts in zip(snapshot.splits, splits, strict=True):
        own = []
        for piece, rows in zip(split.pieces, counts.piece_rows, strict=True):
            own.append(seen[piece.object])
            seen[piece.object] += rows
        offsets.append(tuple(own))
    return tuple(offsets)
