"""Which few shapes cost least for a histogram of lengths: exact dynamic programming over the given costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from compile.shapes import Shape, ShapePlan


class Costs(Protocol):
    """Seconds of one batch; see compile.costs.CostModel."""

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

    `counts[n]` is the number of rows of n tokens, int64 (lengths,). A shape's rows run in full batches and one partial
    batch, which costs as much as a full one. `fixed_seconds` adds a price per chosen shape, for instance compile
    seconds divided by the nights that they are to pay off in. Equal costs are broken the same way in every run.
    Raises ValueError when a row or `max_length` fits no candidate.
    """
    if max_graphs < 1:
        raise ValueError(f"a plan needs at least one graph, not {max_graphs}")
    table = _table(counts, costs, candidates, max_length, fixed_seconds or {})
    last = len(table.lengths)
    best = np.full((max_graphs + 1, last + 1), np.inf)
    best[0, 0] = 0.0
    came_from = np.zeros((max_graphs + 1, last + 1), np.int64)
    for graphs in range(1, max_graphs + 1):
        # segment[i, j]: seconds of rows between boundaries i and j when they run in the shape that ends at j.
        through = best[graphs - 1][:, None] + table.segment
        came_from[graphs, 1:] = through.argmin(axis=0)
        best[graphs, 1:] = through.min(axis=0)
    graphs = int(best[1:, last].argmin()) + 1
    chosen: list[Shape] = []
    end = last
    while graphs > 0:
        start = int(came_from[graphs, end])
        chosen.append(table.shape(start, end))
        end, graphs = start, graphs - 1
    return make_plan(chosen[::-1], costs)


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
    """Rows that go to each shape. Raises ValueError when rows are longer than the longest."""
    ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    stops = [int(ends[min(shape.length + 1, len(counts))]) for shape in plan.shapes]
    if stops[-1] != int(ends[-1]):
        raise ValueError(f"{int(ends[-1]) - stops[-1]} rows exceed the plan's longest shape, {plan.shapes[-1]}")
    return [stop - start for start, stop in zip([0, *stops[:-1]], stops, strict=True)]


def executions(plan: ShapePlan, counts: NDArray[np.int64]) -> list[int]:
    """Batches of each shape, the partial one included."""
    return [-(-rows // shape.batch) for rows, shape in zip(rows_per_shape(plan, counts), plan.shapes, strict=True)]


def predicted_seconds(plan: ShapePlan, counts: NDArray[np.int64]) -> float:
    """Seconds of one core for all rows, by the plan's own costs."""
    return sum(number * seconds for number, seconds in zip(executions(plan, counts), plan.seconds, strict=True))


def padding_efficiency(plan: ShapePlan, counts: NDArray[np.int64]) -> float:
    """Real tokens / slot tokens, 1.0 for no rows."""
    slots = sum(number * shape.slot_tokens for number, shape in zip(executions(plan, counts), plan.shapes, strict=True))
    real = int((np.arange(len(counts)) * counts).sum())
    return real / slots if slots else 1.0


@dataclass(frozen=True, slots=True)
class _Table:
    """Boundaries 0..n, where boundary j > 0 stands for the candidate length `lengths[j - 1]`."""

    lengths: list[int]
    segment: NDArray[np.float64]
    """(n + 1, n): seconds of the rows above boundary i up to boundary j + 1; infinite where i > j."""
    batch: NDArray[np.int64]
    """(n + 1, n): the batch that takes those seconds."""

    def shape(self, start: int, end: int) -> Shape:
        return Shape(length=self.lengths[end - 1], batch=int(self.batch[start, end - 1]))


def _table(
    counts: NDArray[np.int64],
    costs: Costs,
    candidates: Sequence[Shape],
    max_length: int,
    fixed_seconds: Mapping[Shape, float],
) -> _Table:
    if counts.ndim != 1 or (counts < 0).any():
        raise ValueError("counts must be one row of numbers of at least 0")
    longest_row = int(np.flatnonzero(counts)[-1]) if counts.any() else 0
    if longest_row > max_length:
        raise ValueError(f"there are rows of {longest_row} tokens, above the largest length of {max_length}")
    last_length = min((shape.length for shape in candidates if shape.length >= max_length), default=None)
    if last_length is None:
        raise ValueError(f"no candidate shape holds {max_length} tokens")
    by_length: dict[int, list[Shape]] = {}
    for shape in sorted(set(candidates)):
        if shape.length <= last_length:
            by_length.setdefault(shape.length, []).append(shape)
    lengths = sorted(by_length)
    ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    below = np.array([0, *(ends[min(length + 1, len(counts))] for length in lengths)])
    segment = np.full((len(lengths) + 1, len(lengths)), np.inf)
    batch = np.zeros_like(segment, dtype=np.int64)
    for column, length in enumerate(lengths):
        rows = below[column + 1] - below[: column + 1]
        # Cheapest per row first, so that a shape without rows tonight gets the batch that serves a later night best.
        for shape in sorted(by_length[length], key=lambda each: (costs.seconds(each)[0] / each.batch, each)):
            seconds = -(-rows // shape.batch) * costs.seconds(shape)[0] + fixed_seconds.get(shape, 0.0)
            better = seconds < segment[: column + 1, column]
            segment[: column + 1, column][better] = seconds[better]
            batch[: column + 1, column][better] = shape.batch
    return _Table(lengths, segment, batch)
