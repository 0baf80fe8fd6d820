"""What `lengthwise plan` shows of a planned night: its shapes on tonight's lengths, the alternatives, a picture."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compile.comparison import PlanLine, ShapeLine, compare_plans, describe_shapes
from compile.picture import plan_picture
from compile.planner import make_plan
from compile.shapes import ShapePlan
from pipeline.context import Context
from pipeline.planning import length_counts
from pipeline.run_plan import load_run
from pipeline.snapshot import load_snapshot
from pipeline.tokenized import load_counts
from pipeline.toolchain import job_toolchain


@dataclass(frozen=True, slots=True)
class PlanComparison:
    """A night's shape plan at today's costs."""

    plan: ShapePlan
    counts: NDArray[np.int64]
    """Rows per token length."""
    shapes: list[ShapeLine]
    plans: list[PlanLine]
    """This plan first; none for a night without rows."""

    def picture(self) -> str:
        """An SVG of lengths, boundaries and padding."""
        return plan_picture(self.plan, self.counts)

    def to_json(self) -> dict[str, Any]:
        shapes = [
            {**dataclasses.asdict(line), "shape": str(line.shape), "slot_tokens": line.slot_tokens}
            for line in self.shapes
        ]
        plans = [
            {"name": line.name, "seconds": line.seconds, "padding_efficiency": line.efficiency, **line.plan.to_json()}
            for line in self.plans
        ]
        return {"shapes": shapes, "plans": plans}


def compare(context: Context, run_uri: str) -> PlanComparison:
    """Describe the plan of a planned run."""
    run = load_run(context.objects, run_uri)
    snapshot = load_snapshot(context.objects, run.snapshot_uri)
    splits = [load_counts(context.objects, run.tokens_uri, split.index) for split in snapshot.splits]
    counts = length_counts(splits, context.job.max_length)
    toolchain = job_toolchain(context, run.model)
    costs = toolchain.costs()
    plan = make_plan(run.shape_plan.shapes, costs)
    candidates = toolchain.target.candidates(context.job.max_length)
    lines = compare_plans(plan, counts, costs, candidates, context.job.max_length) if counts.any() else []
    return PlanComparison(plan, counts, describe_shapes(plan, counts), lines)
