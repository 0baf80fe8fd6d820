"""Step 4, compile: make sure that every shape of the run has a proven artifact; the only step that compiles."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from compile.accuracy import LabelledRow
from compile.batches import TokenRow
from compile.build import build_missing
from compile.errors import ArtifactError
from compile.parity import TOLERANCES
from compile.planner import make_plan
from compile.shapes import Shape, ShapePlan
from compile.upkeep import discard_damaged
from pipeline.columns import kept_schema
from pipeline.context import Context
from pipeline.frozen_plan import read_frozen_plan
from pipeline.layout import token_object
from pipeline.models import job_model
from pipeline.parquet_files import read_table
from pipeline.run_plan import RunPlan
from pipeline.shards import Range
from pipeline.tokenized import load_counts, read_block
from pipeline.toolchain import Toolchain, artifact_store, job_toolchain

_ROWS_PER_RANGE = 32
"""Real rows handed to the parity check per shape."""
_LABELLED_PER_RANGE = 256


def require_artifacts(context: Context, toolchain: Toolchain, shape_plan: ShapePlan) -> None:
    """Raises ArtifactError naming every shape without a proven artifact, and the command that builds them."""
    unfit = [f"shape {shape}: {reason}" for shape, reason in toolchain.unfit(shape_plan).items()]
    if unfit:
        raise ArtifactError("\n".join([*unfit, f"This run may not compile. {_build_command(context)}"]))


def require_frozen_artifacts(context: Context) -> None:
    """Before a row is read: the job has a frozen plan and all its artifacts. Raises ArtifactError."""
    _, model = job_model(context)
    toolchain = job_toolchain(context, model)
    frozen = read_frozen_plan(context, toolchain)
    if frozen is None and context.job.shapes:
        frozen = make_plan(context.job.shapes, toolchain.costs())
    if frozen is None:
        raise ArtifactError(
            f"job {context.job.name} may not compile and has no frozen shape plan yet. {_build_command(context)}"
        )
    require_artifacts(context, toolchain, frozen)


def frozen_artifacts(context: Context) -> list[str]:
    """Keys of the artifacts that the job's frozen plan uses on this kind of host; none before the first run."""
    _, model = job_model(context)
    toolchain = job_toolchain(context, model)
    frozen = read_frozen_plan(context, toolchain)
    return [toolchain.spec(shape).key for shape in frozen.shapes] if frozen else []


def discard_damaged_artifacts(context: Context, plan: RunPlan) -> None:
    """Drop the run's artifacts whose bytes are not what their manifests say, so that they are built again."""
    for key in discard_damaged(artifact_store(context), plan.artifacts):
        context.say(f"compile: artifact {key} is damaged and was dropped")


def _build_command(context: Context) -> str:
    return f"Build with: lengthwise compile JOB --ds {context.ds}"


def missing_shapes(context: Context, plan: RunPlan) -> list[Shape]:
    """Shapes that a run has to build; none for a night without rows, which needs no graph and can prove none."""
    return list(job_toolchain(context, plan.model).unfit(plan.shape_plan)) if plan.shards else []


def compile_run(context: Context, plan: RunPlan, index: int = 0, of: int = 1, *, ordered: bool) -> dict[str, int]:
    """Build the missing ones among shapes index, index + of, ... of the plan.

    `ordered` is an explicit `lengthwise compile`, which `compile: never` does not forbid. Raises CompileError when a
    shape does not compile or is not faithful to the model, ArtifactError when one is missing and may not be built.
    """
    own = plan.shape_plan.shapes[index::of]
    missing = [shape for shape in missing_shapes(context, plan) if shape in own]
    if missing and context.job.compile == "never" and not ordered:
        require_artifacts(context, job_toolchain(context, plan.model), plan.shape_plan)
    if missing:
        _build(context, plan, missing)
    return {"built": len(missing), "reused": len(own) - len(missing)}


def _build(context: Context, plan: RunPlan, shapes: list[Shape]) -> None:
    model_dir, model = job_model(context)
    toolchain = job_toolchain(context, model)
    tolerance = dataclasses.replace(TOLERANCES[toolchain.precision], **context.job.parity.model_dump(exclude_none=True))
    build_missing(
        toolchain.store,
        toolchain.target,
        model,
        model_dir,
        make_plan(shapes, toolchain.costs()),
        toolchain.precision,
        sample_rows(context, plan),
        tolerance,
        lambda line: context.say(f"compile: {line}"),
        labelled=labelled_rows(context, plan),
    )


def sample_rows(context: Context, plan: RunPlan) -> list[TokenRow]:
    """Real rows of the night for the parity check: spread over the lengths of each shape's first ranges.

    A text may spell out the pad token; such a row is predicted like any other, but says nothing about padding.
    """
    rows = [row for _, row, _ in _spread_rows(context, plan, _ROWS_PER_RANGE)]
    return [row for row in rows if not (row.token_ids == plan.model.pad_token_id).any()]


def labelled_rows(context: Context, plan: RunPlan) -> list[LabelledRow]:
    """Real rows whose true label is known and one of the model's, by name or by index; none for other problem types."""
    if not plan.job.input.label or plan.model.problem_type != "single_label":
        return []
    index = {name: number for number, name in enumerate(plan.model.labels)}
    index |= {str(number): number for number in range(len(plan.model.labels)) if str(number) not in index}
    labels: dict[int, list[str | None]] = {}
    found = []
    for split, row, position in _spread_rows(context, plan, _LABELLED_PER_RANGE):
        if split not in labels:
            kept = read_table(context.objects.get(token_object(plan.tokens_uri, split, "kept.parquet")))
            labels[split] = kept.cast(kept_schema(plan.job))["__label"].to_pylist()
        label = labels[split][position]
        if label in index:
            found.append(LabelledRow(row, index[label]))
    return found


def _spread_rows(context: Context, plan: RunPlan, count: int) -> Iterator[tuple[int, TokenRow, int]]:
    """Up to `count` rows of each shape's first ranges, as (split, row, position in the split)."""
    first: dict[int, Range] = {}
    for shard in plan.shards:
        first.setdefault(shard.shape, max(shard.ranges, key=lambda part: part.stop - part.start))
    for part in first.values():
        counts = load_counts(context.objects, plan.tokens_uri, part.split)
        block = read_block(context.objects, plan.tokens_uri, counts, part.start, part.stop)
        yield from ((part.split, row, position) for row, position in block.spread(count))
