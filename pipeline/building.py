"""Step 4, compile: make sure that every shape of the run has a proven artifact; the only step that compiles."""

from __future__ import annotations

import numpy as np

from compile.artifacts import artifact_spec
from compile.batches import TokenRow
from compile.build import build_missing
from compile.errors import ArtifactError
from compile.model import ModelInfo
from compile.parity import TOLERANCES
from compile.shapes import ShapePlan
from pipeline.context import Context
from pipeline.models import job_model
from pipeline.planning import artifact_store, job_target, read_shape_plan
from pipeline.run_plan import RunPlan
from pipeline.shards import Range
from pipeline.tokenized import load_counts, read_block

_ROWS_PER_SHAPE = 32
"""Real rows handed to the parity check per shape, spread evenly over its lengths."""


def unfit_artifacts(context: Context, model: ModelInfo, shape_plan: ShapePlan) -> list[str]:
    """One line per shape whose artifact cannot be loaded on this host, with the reason."""
    target, precision = job_target(context)
    store = artifact_store(context)
    unfit = []
    for shape in shape_plan.shapes:
        try:
            store.check(artifact_spec(target, model, shape, precision))
        except ArtifactError as error:
            unfit.append(f"shape {shape}: {error}")
    return unfit


def require_artifacts(context: Context, model: ModelInfo, shape_plan: ShapePlan) -> None:
    """Raises ArtifactError naming every shape without a proven artifact, and the command that builds them."""
    unfit = unfit_artifacts(context, model, shape_plan)
    if unfit:
        raise ArtifactError("\n".join([*unfit, f"This run may not compile. {_build_command(context)}"]))


def require_frozen_artifacts(context: Context) -> None:
    """Before a row is read: the job has a frozen plan and all its artifacts. Raises ArtifactError."""
    target, precision = job_target(context)
    _, model = job_model(context)
    frozen = read_shape_plan(context, target, precision, model)
    if frozen is None:
        raise ArtifactError(
            f"job {context.job.name} may not compile and has no frozen shape plan yet. {_build_command(context)}"
        )
    require_artifacts(context, model, frozen)


def _build_command(context: Context) -> str:
    return f"Build with: lengthwise compile JOB --ds {context.ds}"


def compile_run(context: Context, plan: RunPlan) -> dict[str, int]:
    """Build what is missing. Raises CompileError when a shape does not compile or is not faithful to the model."""
    unfit = len(unfit_artifacts(context, plan.model, plan.shape_plan))
    if not unfit or not plan.shards:  # a night without rows needs no graph, and has no row to prove one on
        return {"built": 0, "reused": len(plan.artifacts) - unfit}
    if context.job.compile == "never":
        require_artifacts(context, plan.model, plan.shape_plan)
    model_dir, model = job_model(context)
    target, precision = job_target(context)
    build_missing(
        artifact_store(context),
        target,
        model,
        model_dir,
        plan.shape_plan,
        precision,
        sample_rows(context, plan),
        TOLERANCES[precision],
        lambda line: context.say(f"compile: {line}"),
    )
    return {"built": unfit, "reused": len(plan.artifacts) - unfit}


def sample_rows(context: Context, plan: RunPlan) -> list[TokenRow]:
    """Real rows of the night for the parity check: up to _ROWS_PER_SHAPE of each shape, spread over its first shard."""
    rows: list[TokenRow] = []
    seen: set[int] = set()
    for shard in plan.shards:
        if shard.shape in seen:
            continue
        seen.add(shard.shape)
        for part in shard.ranges[:4]:
            rows += _spread(context, plan, part)
    return rows


def _spread(context: Context, plan: RunPlan, part: Range) -> list[TokenRow]:
    counts = load_counts(context.objects, plan.tokens_uri, part.split)
    block = read_block(context.objects, plan.tokens_uri, counts, part.start, part.stop)
    ends = np.cumsum(block.lengths)
    picked = np.unique(np.linspace(0, len(ends) - 1, _ROWS_PER_SHAPE).astype(int))
    rows = [
        TokenRow(block.flat[ends[index] - block.lengths[index] : ends[index]], int(block.rows["segment_b"][index]))
        for index in picked
    ]
    # A text may spell out the pad token; it is predicted like any other, but says nothing about padding.
    return [row for row in rows if not (row.token_ids == plan.model.pad_token_id).any()]
