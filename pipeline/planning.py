"""Step 3, plan: add the counts up, choose or reuse the shape plan, cut shards, name the run by its fingerprint."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from compile.artifacts import ArtifactStore, artifact_spec
from compile.costs import job_costs
from compile.model import ModelInfo
from compile.planner import plan_shapes, powers_of_two
from compile.shapes import ShapePlan
from compile.targets import Target, load_target
from pipeline.budget import check_budget
from pipeline.context import Context
from pipeline.digests import code_version, digest
from pipeline.errors import JobError
from pipeline.models import job_model
from pipeline.run_plan import RunPlan, load_run, plan_object
from pipeline.shards import cut_shards
from pipeline.snapshot import Snapshot
from pipeline.tokenize import tokens_key
from pipeline.tokenized import SplitCounts, load_counts


def job_target(context: Context) -> tuple[Target, str]:
    """The job's target and the precision that `auto` means here. Raises JobError when this machine lacks it."""
    target = load_target(context.job.target)
    reason = target.unavailable()
    if reason:
        raise JobError(f"target: {target.name} cannot run here: {reason}")
    precision = target.default_precision() if context.job.precision == "auto" else context.job.precision
    unsupported = target.supports(precision)
    if unsupported:
        raise JobError(f"precision: {unsupported}")
    return target, precision


def artifact_store(context: Context) -> ArtifactStore:
    return ArtifactStore(context.objects, context.artifacts_uri, context.cache_dir / "artifacts")


def plan_run(context: Context, snapshot_uri: str, snapshot: Snapshot) -> RunPlan:
    """Plan a tokenised snapshot; the same input, job and code always give the same plan under the same fingerprint."""
    _, model = job_model(context)
    tokens_uri = context.layout.tokens(context.ds, tokens_key(context, snapshot, model))
    splits = [load_counts(context.objects, tokens_uri, split.index) for split in snapshot.splits]
    check_budget(context.job.reject_budget, sum(split.rows for split in splits), [s.reasons for s in splits])
    target, precision = job_target(context)
    shape_plan = frozen_shape_plan(context, target, precision, model, length_counts(splits, context.job.max_length))
    artifacts = tuple(artifact_spec(target, model, shape, precision).key for shape in shape_plan.shapes)
    identity = {
        "snapshot": snapshot.digest,
        "job": context.job.output_fields(),
        "model": model.digest,
        "precision": precision,
        "artifacts": artifacts,
        "code": code_version(),
    }
    plan = RunPlan(
        fingerprint=digest(identity),
        job=context.job,
        ds=context.ds,
        snapshot_uri=snapshot_uri,
        tokens_uri=tokens_uri,
        model=model,
        precision=precision,
        shape_plan=shape_plan,
        artifacts=artifacts,
        shards=tuple(cut_shards(splits, shape_plan)),
        row_offsets=row_offsets(snapshot, splits),
    )
    context.objects.put_new(plan_object(plan.uri), json.dumps(plan.to_json()).encode())
    context.say(
        f"plan: {sum(split.accepted for split in splits):,} rows in {len(plan.shards)} shards of "
        f"{len(shape_plan.shapes)} shapes ({', '.join(map(str, shape_plan.shapes))})"
    )
    return load_run(context.objects, plan.uri)


def length_counts(splits: Sequence[SplitCounts], max_length: int) -> NDArray[np.int64]:
    """Rows per token length, int64 of shape (max_length + 1,)."""
    counts = np.zeros(max_length + 1, np.int64)
    for split in splits:
        counts[list(split.lengths)] += np.array(split.counts, np.int64)
    return counts


def shape_plan_uri(context: Context, target: Target, precision: str, model: ModelInfo) -> str:
    """Where a job's frozen plan lies: one per model, target, precision, machine kind and planning choice."""
    job = context.job
    key = digest(
        {
            "model": model.digest,
            "target": target.name,
            "machine": target.machine(),
            "precision": precision,
            "shapes": [str(shape) for shape in job.shapes],
            "max_graphs": job.max_graphs,
            "max_length": job.max_length,
        }
    )
    return context.layout.shape_plan(key)


def read_shape_plan(context: Context, target: Target, precision: str, model: ModelInfo) -> ShapePlan | None:
    """The frozen plan, None before the first run."""
    try:
        return ShapePlan.from_json(json.loads(context.objects.get(shape_plan_uri(context, target, precision, model))))
    except FileNotFoundError:
        return None


def frozen_shape_plan(
    context: Context, target: Target, precision: str, model: ModelInfo, counts: NDArray[np.int64]
) -> ShapePlan:
    """The job's shape plan: chosen from the first night's lengths, then reused so that artifacts are, too."""
    uri = shape_plan_uri(context, target, precision, model)
    frozen = read_shape_plan(context, target, precision, model)
    if frozen is not None:
        return frozen
    plan = _new_shape_plan(context, target, precision, model, counts)
    context.objects.put_new(uri, json.dumps(plan.to_json()).encode())
    return ShapePlan.from_json(json.loads(context.objects.get(uri)))


def _new_shape_plan(
    context: Context, target: Target, precision: str, model: ModelInfo, counts: NDArray[np.int64]
) -> ShapePlan:
    job = context.job
    costs = job_costs(artifact_store(context), target, model, precision)
    if job.shapes:
        predicted = [costs.seconds(shape) for shape in job.shapes]
        return ShapePlan(job.shapes, tuple(s for s, _ in predicted), tuple(m for _, m in predicted))
    if not counts.any():
        return powers_of_two(job.max_length, costs)
    return plan_shapes(counts, costs, target.candidates(job.max_length), job.max_graphs, job.max_length)


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
