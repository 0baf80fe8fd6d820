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
from compile.remainders import place_remainders
from compile.shapes import Shape, ShapePlan


@dataclass(frozen=True, slots=True)
class ShapeLine:
    """One shape of a plan on a histogram."""

    shape: Shape
    rows: int
    """Rows that run in it."""
    batches: int
    real_tokens: int
    """Of those rows."""
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
    """A line per shape, in the plan's order, with the rows that run in it: remainders count where they are placed."""
    batches, moves = executions(plan, counts), place_remainders(rows_per_shape(plan, counts), plan)
    lines: list[ShapeLine] = []
    handed: list[Run] = []
    start = 0
    for index, shape in enumerate(plan.shapes):
        stop = min(shape.length + 1, len(counts))
        runs = [*handed, *((length, int(counts[length])) for length in range(start, stop))]
        kept, handed = _split_runs(runs, sum(count for _, count in runs) - moves[index])
        rows, tokens = sum(count for _, count in kept), sum(length * count for length, count in kept)
        seconds = batches[index] * plan.seconds[index]
        lines.append(ShapeLine(shape, rows, batches[index], tokens, seconds, plan.measured[index]))
        start = max(start, stop)
    return lines


Run = tuple[int, int]
"""Length, and how many rows of it."""


def _split_runs(runs: Sequence[Run], rows: int) -> tuple[list[Run], list[Run]]:
    """The first `rows` rows, and the others."""
    first, rest = [], []
    for length, count in runs:
        taken = min(count, max(0, rows))
        rows -= taken
        first.append((length, taken))
        rest.append((length, count - taken))
    return first, [run for run in rest if run[1]]


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
