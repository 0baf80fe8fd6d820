"""How a shape plan compares with what one would do without planning: the rows of `lengthwise plan`'s table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compile.planner import (
    Costs,
    executions,
    make_plan,
    padding_efficiency,
    plan_shapes,
    powers_of_two,
    predicted_seconds,
    rows_per_shape,
)
from compile.shapes import Shape, ShapePlan


@dataclass(frozen=True, slots=True)
class ShapeLine:
    """One shape of a plan on a histogram."""

    shape: Shape
    rows: int
    """Rows whose length goes to it."""
    batches: int
    real_tokens: int
    """Of the rows whose length goes to it."""
    seconds: float
    measured: bool

    @property
    def slot_tokens(self) -> int:
        return self.batches * self.shape.slot_tokens


@dataclass(frozen=True, slots=True)
class PlanLine:
    """One plan on a histogram."""

    name: str
    plan: ShapePlan
    seconds: float
    """Of one core, for all rows."""
    efficiency: float
    """Real tokens / slot tokens."""


def describe_shapes(plan: ShapePlan, counts: NDArray[np.int64]) -> list[ShapeLine]:
    """A line per shape, in the plan's order."""
    tokens = np.concatenate([[0], np.cumsum(np.arange(len(counts)) * counts)])
    stops = [int(tokens[min(shape.length + 1, len(counts))]) for shape in plan.shapes]
    real = [stop - start for start, stop in zip([0, *stops[:-1]], stops, strict=True)]
    batches, rows = executions(plan, counts), rows_per_shape(plan, counts)
    return [
        ShapeLine(shape, rows[i], batches[i], real[i], batches[i] * plan.seconds[i], plan.measured[i])
        for i, shape in enumerate(plan.shapes)
    ]


def compare_plans(
    plan: ShapePlan, counts: NDArray[np.int64], costs: Costs, candidates: Sequence[Shape], max_length: int
) -> list[PlanLine]:
    """The plan, one graph fewer and one more, powers of two with the same and with the usual number, one maximal shape.

    All are judged by `costs`. The first line is the plan's.
    """
    graphs = len(plan.shapes)
    others = {"this plan": make_plan(plan.shapes, costs)}
    if graphs > 1:
        others["one graph fewer"] = plan_shapes(counts, costs, candidates, graphs - 1, max_length)
    others["one graph more"] = plan_shapes(counts, costs, candidates, graphs + 1, max_length)
    usual = powers_of_two(max_length, costs)
    others[f"powers of two ({len(usual.shapes)})"] = usual
    if graphs != len(usual.shapes):
        others[f"planned with {len(usual.shapes)}"] = plan_shapes(
            counts, costs, candidates, len(usual.shapes), max_length
        )
    others["one maximal shape"] = plan_shapes(counts, costs, candidates, 1, max_length)
    return [
        PlanLine(name, other, predicted_seconds(other, counts), padding_efficiency(other, counts))
        for name, other in others.items()
    ]
