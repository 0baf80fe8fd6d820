"""How the job's shape plan compares with the alternatives, on the same lengths and the same costs."""

from __future__ import annotations

from typing import Any

from compile.costs import job_costs
from compile.planner import padding_efficiency, plan_shapes, powers_of_two, predicted_seconds
from compile.shapes import ShapePlan
from pipeline.context import Context
from pipeline.planning import artifact_store, job_target, length_counts
from pipeline.run_plan import load_run
from pipeline.snapshot import load_snapshot
from pipeline.tokenized import load_counts

Compared = tuple[str, ShapePlan, float, float, int]
"""Name, plan, predicted seconds of one core, padding efficiency, graphs."""


def compare_plans(context: Context, run_uri: str) -> list[Compared]:
    """The run's plan first; then one maximal shape, powers of two, one graph more and one less."""
    plan = load_run(context.objects, run_uri)
    snapshot = load_snapshot(context.objects, plan.snapshot_uri)
    splits = [load_counts(context.objects, plan.tokens_uri, split.index) for split in snapshot.splits]
    counts = length_counts(splits, context.job.max_length)
    target, precision = job_target(context)
    costs = job_costs(artifact_store(context), target, plan.model, precision)
    candidates = target.candidates(context.job.max_length)
    graphs = len(plan.shape_plan.shapes)
    plans = {"this run": plan.shape_plan, "powers of two": powers_of_two(context.job.max_length, costs)}
    if counts.any():
        wanted = {"one shape": 1, "one graph fewer": graphs - 1, "planned anew": graphs, "one graph more": graphs + 1}
        plans |= {
            name: plan_shapes(counts, costs, candidates, limit, context.job.max_length)
            for name, limit in wanted.items()
            if limit >= 1
        }
    return [
        (name, item, predicted_seconds(item, counts), padding_efficiency(item, counts), len(item.shapes))
        for name, item in plans.items()
    ]


def as_json(compared: list[Compared]) -> list[dict[str, Any]]:
    return [
        {"name": name, **plan.to_json(), "predicted_core_seconds": seconds, "padding_efficiency": efficiency}
        for name, plan, seconds, efficiency, _ in compared
    ]
