"""Which few shapes cost least for a histogram of lengths, and what a plan costs: exact for the given costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from compile.remainders import executed_batches
from compile.search import Options, cheapest
from compile.shapes import Shape, ShapePlan


class Costs(Protocol):
    """Seconds of one batch, and whether they were measured; see compile.costs.CostModel."""

    def seconds(self, shape: Shape) -> tuple[float, bool]: ...


def plan_shapes(
    counts: NDArray[np.int64],
    costs: Costs,
    candidates: Sequence[Shape],
    max_graphs: int,
    max_length: int,
    *,
    fixed_seconds: Mapping[Shape, float] | None = None,
) -> ShapePlan:
    """The cheapest plan of at most `max_graphs` shapes whose longest holds `max_length` tokens.

    `counts[n]` is the number of rows of n tokens, int64 (lengths,). A partial batch costs as much as a full one and
    runs where it is cheapest (compile.remainders). `fixed_seconds` adds a price per chosen shape, for instance compile
    seconds divided by the nights that they are to pay off in. Equal costs are broken the same way in every run.
    Raises ValueError when a row or `max_length` fits no candidate.
    """
    if max_graphs < 1:
        raise ValueError(f"a plan needs at least one graph, not {max_graphs}")
    _check_counts(counts, max_length)
    last = min((shape.length for shape in candidates if shape.length >= max_length), default=None)
    if last is None:
        raise ValueError(f"no candidate shape holds {max_length} tokens")
    # Per length the cheapest per row first, so that a shape without rows tonight serves a later night best.
    shapes = sorted(
        {shape for shape in candidates if shape.length <= last},
        key=lambda shape: (shape.length, costs.seconds(shape)[0] / shape.batch, shape.batch),
    )
    options = _options(shapes, counts, costs, fixed_seconds or {})

    def total(chosen: Sequence[int]) -> float:
        plan = make_plan([shapes[index] for index in chosen], costs)
        return predicted_seconds(plan, counts) + float(options.fixed[list(chosen)].sum())

    return make_plan([shapes[index] for index in cheapest(options, max_graphs, total)], costs)


def powers_of_two(max_length: int, costs: Costs, slot_tokens: int = 1024, shortest: int = 16) -> ShapePlan:
    """The usual buckets: lengths that double up to `max_length`, `slot_tokens` each, for when nothing is known."""
    lengths = [shortest]
    while lengths[-1] < max_length:
        lengths.append(lengths[-1] * 2)
    lengths = sorted({min(length, max_length) for length in lengths})
    return make_plan([Shape(length=length, batch=max(1, slot_tokens // length)) for length in lengths], costs)


def make_plan(shapes: Sequence[Shape], costs: Costs) -> ShapePlan:
    """A plan of given shapes with their costs."""
    known = [costs.seconds(shape) for shape in shapes]
    return ShapePlan(tuple(shapes), tuple(seconds for seconds, _ in known), tuple(measured for _, measured in known))


def rows_per_shape(plan: ShapePlan, counts: NDArray[np.int64]) -> list[int]:
    """Rows whose length goes to each shape. Raises ValueError when rows are longer than the longest."""
    stops = [_rows_up_to(counts, shape.length) for shape in plan.shapes]
    if stops[-1] != int(counts.sum()):
        raise ValueError(f"{int(counts.sum()) - stops[-1]} rows exceed the plan's longest shape, {plan.shapes[-1]}")
    return [stop - start for start, stop in zip([0, *stops[:-1]], stops, strict=True)]


def executions(plan: ShapePlan, counts: NDArray[np.int64]) -> tuple[int, ...]:
    """Batches of each shape, partial ones included and placed where they cost least."""
    return executed_batches(rows_per_shape(plan, counts), plan)


def predicted_seconds(plan: ShapePlan, counts: NDArray[np.int64]) -> float:
    """Seconds of one core for all rows, by the plan's own costs."""
    return sum(number * seconds for number, seconds in zip(executions(plan, counts), plan.seconds, strict=True))


def padding_efficiency(plan: ShapePlan, counts: NDArray[np.int64]) -> float:
    """Real tokens / slot tokens, 1.0 for no rows."""
    numbers = executions(plan, counts)
    slots = sum(number * shape.slot_tokens for number, shape in zip(numbers, plan.shapes, strict=True))
    real = int((np.arange(len(counts)) * counts).sum())
    return real / slots if slots else 1.0


def _options(
    shapes: Sequence[Shape], counts: NDArray[np.int64], costs: Costs, fixed_seconds: Mapping[Shape, float]
) -> Options:
    """The search's arrays for shapes that are sorted by length."""
    lengths = sorted({shape.length for shape in shapes})
    boundary_of = {length: index for index, length in enumerate(lengths, start=1)}
    return Options(
        below=np.array([0, *(_rows_up_to(counts, length) for length in lengths)], np.int64),
        boundary=np.array([boundary_of[shape.length] for shape in shapes], np.int64),
        batch=np.array([shape.batch for shape in shapes], np.int64),
        seconds=np.array([costs.seconds(shape)[0] for shape in shapes]),
        fixed=np.array([fixed_seconds.get(shape, 0.0) for shape in shapes]),
    )


def _check_counts(counts: NDArray[np.int64], max_length: int) -> None:
    if counts.ndim != 1 or (counts < 0).any():
        raise ValueError("counts must be one row of numbers of at least 0")
    longest_row = int(np.flatnonzero(counts)[-1]) if counts.any() else 0
    if longest_row > max_length:
        raise ValueError(f"there are rows of {longest_row} tokens, above the largest length of {max_length}")


def _rows_up_to(counts: NDArray[np.int64], length: int) -> int:
    return int(counts[: length + 1].sum())
