"""The job's shape plan: chosen from the first night's lengths, kept so that artifacts are, replaced when it drifts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compile.budget import GraphBudget
from compile.costs import CostModel
from compile.drift import Drift, measure_drift
from compile.memory import graph_bytes
from compile.planner import make_plan, plan_shapes, powers_of_two
from compile.shapes import Shape, ShapePlan
from pipeline.context import Context
from pipeline.digests import digest
from pipeline.errors import JobError
from pipeline.models import job_model
from pipeline.toolchain import Toolchain


def plan_uri(context: Context, toolchain: Toolchain) -> str:
    """Where the plan lies: one per model, target, precision, machine kind and planning choice."""
    job = context.job
    identity = {
        "model": toolchain.model.digest,
        "target": toolchain.target.name,
        "machine": toolchain.target.machine(),
        "precision": toolchain.precision,
        "shapes": [str(shape) for shape in job.shapes],
        "max_graphs": job.max_graphs,
        "max_length": job.max_length,
    }
    optional = {"new_tokens": job.new_tokens, "memory_mb": job.max_memory_mb, "compile_s": job.max_compile_seconds}
    identity |= {name: value for name, value in optional.items() if value}
    return context.layout.shape_plan(digest(identity))


def read_frozen_plan(context: Context, toolchain: Toolchain) -> ShapePlan | None:
    """None before the first run."""
    try:
        return ShapePlan.from_json(json.loads(context.objects.get(plan_uri(context, toolchain))))
    except FileNotFoundError:
        return None


def tonights_shape_plan(
    context: Context, toolchain: Toolchain, counts: NDArray[np.int64]
) -> tuple[ShapePlan, dict[str, Any] | None]:
    """The plan to run tonight's lengths with, and how far it has drifted from the best one.

    `counts` are rows per length, int64 (max_length + 1,). A job without a plan gets one, and it is frozen with the
    costs it was made with: where rows go must not change when costs are measured again. Where the job allows it, a
    plan that has drifted too far is replaced. The drift, at today's costs, is None when there was nothing to compare.
    """
    frozen = read_frozen_plan(context, toolchain)
    if frozen is None and not context.job.shapes and not counts.any():
        return _new_plan(context, toolchain, counts), None  # nothing to plan from: the first night with rows decides
    if frozen is None:
        context.objects.put_new(plan_uri(context, toolchain), _encoded(_new_plan(context, toolchain, counts)))
        frozen = read_frozen_plan(context, toolchain)
        assert frozen is not None
        return frozen, None
    if context.job.shapes or not counts.any():
        return frozen, None
    drift = _drift(context, toolchain, frozen, counts)
    if _pays(context, drift):
        context.objects.put(plan_uri(context, toolchain), _encoded(drift.replanned))
        return drift.replanned, _drift_json(drift, replaced=True)
    return frozen, _drift_json(drift, replaced=False)


def retry_shape_plan(context: Context, toolchain: Toolchain, counts: NDArray[np.int64], retry_of: str) -> ShapePlan:
    """The job's frozen plan; where it has none, because its lengths changed, one that is kept for this retry alone.

    A plan for whole nights is not made from the lengths of a few rejects.
    """
    frozen = read_frozen_plan(context, toolchain)
    if frozen is None:
        uri = context.layout.shape_plan(digest([plan_uri(context, toolchain), retry_of]))
        context.objects.put_new(uri, _encoded(_new_plan(context, toolchain, counts)))
        frozen = ShapePlan.from_json(json.loads(context.objects.get(uri)))
    return frozen


def _new_plan(context: Context, toolchain: Toolchain, counts: NDArray[np.int64]) -> ShapePlan:
    job, costs = context.job, toolchain.costs()
    if job.shapes:
        return make_plan(job.shapes, costs)
    if not counts.any():
        return powers_of_two(job.max_length, costs)
    return _planned(context, toolchain, counts, costs, compiled=())


def affordable(context: Context, toolchain: Toolchain, costs: CostModel) -> tuple[Sequence[Shape], int]:
    """The candidates that fit into the job's memory, and how many graphs it may have. Raises JobError for none."""
    job, model_dir = context.job, job_model(context)[0]
    given, device = job.max_memory_mb, job.neuron_settings
    memory_bytes = given << 20 if given else device.memory_bytes if device else None
    budget = GraphBudget(job.max_graphs, memory_bytes, job.max_compile_seconds)
    try:
        candidates = budget.fitting(
            toolchain.target.candidates(job.max_length),
            lambda shape: graph_bytes(model_dir, shape, toolchain.precision, job.new_tokens),
            job.max_length,
        )
        return candidates, budget.affordable_graphs(costs.compile_s)
    except ValueError as error:
        limit = f"; without max_memory_mb, {device.tensor_parallel_size} NeuronCores limit it" if device else ""
        raise JobError(f"shapes: auto: {error}{limit}") from error


def _planned(
    context: Context, toolchain: Toolchain, counts: NDArray[np.int64], costs: CostModel, compiled: Sequence[Shape]
) -> ShapePlan:
    """The cheapest plan within the job's budget. Each graph pays for being loaded every night, and for its compiling.

    That is spread over the nights that the job names; shapes that are `compiled` have paid. Raises JobError.
    """
    job = context.job
    candidates, graphs = affordable(context, toolchain, costs)
    price = costs.compile_s / job.amortise_nights
    fixed = {shape: costs.load_s + (0.0 if shape in compiled else price) for shape in candidates}
    return plan_shapes(counts, costs, candidates, graphs, job.max_length, fixed_seconds=fixed)


def _drift(context: Context, toolchain: Toolchain, frozen: ShapePlan, counts: NDArray[np.int64]) -> Drift:
    """A new plan pays for each shape that it would have to compile, spread over the nights that the job names."""
    costs = toolchain.costs()
    best = _planned(context, toolchain, counts, costs, frozen.shapes)
    return measure_drift(frozen, best, counts, costs, costs.compile_s, context.job.amortise_nights, costs.load_s)


def _pays(context: Context, drift: Drift) -> bool:
    saving = (
        f"a new plan would save {drift.saved_seconds:.1f} core seconds a night ({drift.saved_share:.1%}), "
        f"net of {drift.compile_seconds:.1f} s of compiling over {drift.nights} nights"
    )
    threshold = context.job.replan
    if threshold is None or drift.saved_share < threshold:
        if drift.saved_share > 0:
            context.say(f"plan: kept; {saving}; see replan in the job file")
        return False
    if context.job.compile == "never":
        context.say(f"plan: kept, for this run may not compile; {saving}")
        return False
    context.say(f"plan: replaced; {saving}")
    return True


def _drift_json(drift: Drift, *, replaced: bool) -> dict[str, Any]:
    return {
        "replaced": replaced,
        "saved_seconds": drift.saved_seconds,
        "saved_share": drift.saved_share,
        "frozen_seconds": drift.frozen_seconds,
        "replanned_seconds": drift.replanned_seconds,
        "compile_seconds": drift.compile_seconds,
        "nights": drift.nights,
        "replanned_shapes": [str(shape) for shape in drift.replanned.shapes],
    }


def _encoded(plan: ShapePlan) -> bytes:
    return json.dumps(plan.to_json()).encode()
