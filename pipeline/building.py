"""Step 4, compile: make sure that every shape of the run has a proven artifact; the only step that compiles."""

from __future__ import annotations

import dataclasses

from compile.errors import ArtifactError, TargetUnavailable
from compile.parity import TOLERANCES, Tolerance
from compile.planner import make_plan
from compile.shapes import Shape, ShapePlan
from compile.targets import without_device
from compile.upkeep import discard_damaged
from pipeline.context import Context
from pipeline.frozen_plan import read_frozen_plan
from pipeline.models import job_model
from pipeline.run_plan import RunPlan
from pipeline.toolchain import Toolchain, artifact_store, job_toolchain
from pipeline.workloads import load_workload


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


def require_compiled(context: Context, toolchain: Toolchain, shapes: list[Shape]) -> None:
    """Before artifacts are proven: they are compiled, their device is here. Raises ArtifactError, TargetUnavailable."""
    problem = without_device(toolchain.target)
    if problem:
        raise TargetUnavailable(f"nothing can be verified here: {problem}")
    absent = [str(shape) for shape in shapes if toolchain.store.pending(toolchain.spec(shape)) is None]
    if absent:
        raise ArtifactError(
            f"--verify compiles nothing, and shapes {', '.join(absent)} are not compiled. {_build_command(context)}"
        )


def _build_command(context: Context) -> str:
    return f"Build with: lengthwise compile JOB --ds {context.ds}"


def missing_shapes(context: Context, plan: RunPlan) -> list[Shape]:
    """Shapes that a run has to build; none for a night without rows, which needs no graph and can prove none."""
    return list(job_toolchain(context, plan.model).unfit(plan.shape_plan)) if plan.shards else []


def compile_run(
    context: Context, plan: RunPlan, index: int = 0, of: int = 1, *, ordered: bool, verify: bool = False
) -> dict[str, int]:
    """Build the missing ones among shapes index, index + of, ... of the plan, and prove the pending ones.

    `ordered` is an explicit `lengthwise compile`, which `compile: never` does not forbid; with `verify` it compiles
    nothing. Raises CompileError when a shape does not compile or is not faithful to the model, ArtifactError when one
    is missing and may not be built.
    """
    own = plan.shape_plan.shapes[index::of]
    missing = [shape for shape in missing_shapes(context, plan) if shape in own]
    if missing and context.job.compile == "never" and not ordered:
        require_artifacts(context, job_toolchain(context, plan.model), plan.shape_plan)
    if missing and verify:
        require_compiled(context, job_toolchain(context, plan.model), missing)
    if missing:
        _build(context, plan, missing)
    return {"built": len(missing), "reused": len(own) - len(missing)}


def tolerance_of(context: Context, toolchain: Toolchain) -> Tolerance:
    """That of the precision, with what the job says instead."""
    return dataclasses.replace(TOLERANCES[toolchain.precision], **context.job.parity.model_dump(exclude_none=True))


def _build(context: Context, plan: RunPlan, shapes: list[Shape]) -> None:
    model_dir, model = job_model(context)
    toolchain = job_toolchain(context, model)
    tolerance = tolerance_of(context, toolchain)
    shapes_plan = make_plan(shapes, toolchain.costs())
    load_workload(plan.job.task).build(context, plan, toolchain, model_dir, shapes_plan, tolerance)
