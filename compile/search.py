"""The exact search behind the planner: dynamic programming over (boundary, rows handed on), cut by a lower bound.

Rows sorted by length are cut at candidate lengths. A shape runs its full batches; its last partial batch runs there or
is handed to the next shape (see compile.remainders). So a state is a boundary with a number of rows handed over it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Options:
    """Candidate shapes, ascending by length. Boundary 0 lies before all lengths, boundary j at the j-th length."""

    below: Ints
    """(boundaries,): rows that are at most as long as the boundary's length."""
    boundary: Ints
    """(options,): the boundary that the option's shape ends at, from 1."""
    batch: Ints
    seconds: Floats
    """Seconds of one batch."""
    fixed: Floats
    """Seconds for having the graph at all."""

    @property
    def last(self) -> int:
        return len(self.below) - 1


@dataclass(frozen=True, slots=True)
class _States:
    """What is known after some graphs; arrays of one length. `parent` points into the states with one graph less."""

    boundary: Ints
    handed: Ints
    seconds: Floats
    parent: Ints
    option: Ints


def cheapest(options: Options, max_graphs: int, upper: Callable[[Sequence[int]], float]) -> list[int]:
    """Indexes of the options of a cheapest plan, ascending. Ties go to fewer graphs, then to the earlier option.

    `upper` tells the seconds of a plan exactly; the search uses it once, to know what it need not look at.
    """
    bound = _lower_bounds(options, max_graphs)
    limit = upper(_without_handing_on(options, max_graphs))
    limit += 1e-9 * abs(limit)
    none = np.zeros(1, np.int64)
    layers = [_States(none, none, np.zeros(1), none - 1, none - 1)]
    for graphs in range(1, max_graphs + 1):
        layers.append(_step(options, layers[-1], bound[max_graphs - graphs], limit))
    ends = [_final_seconds(layer, options.last) for layer in layers]
    graphs = int(np.argmin(ends))
    chosen: list[int] = []
    state = int(np.flatnonzero(layers[graphs].boundary == options.last)[0])
    while graphs:
        chosen.append(int(layers[graphs].option[state]))
        state = int(layers[graphs].parent[state])
        graphs -= 1
    return chosen[::-1]


def _step(options: Options, states: _States, bound: Floats, limit: float) -> _States:
    """States after one graph more. `bound[j]` is what rows above boundary j cost at least with the graphs left."""
    per_row = _per_row(options)
    # Pairs of a state and a later boundary that can still lead to a plan within the limit.
    rows = options.below[None, :] - options.below[states.boundary][:, None] + states.handed[:, None]
    least = states.seconds[:, None] + rows * per_row[None, :] + bound[None, :]
    possible = (least <= limit) & (np.arange(options.last + 1)[None, :] > states.boundary[:, None])
    start, end = np.nonzero(possible)
    first, count = _option_ranges(options)
    repeated = np.repeat(np.arange(len(end)), count[end])
    offset = np.arange(len(repeated)) - np.repeat(np.cumsum(count[end]) - count[end], count[end])
    option = first[end][repeated] + offset
    start, end = start[repeated], end[repeated]
    full, rest = np.divmod(rows[start, end], options.batch[option])
    spent = states.seconds[start] + full * options.seconds[option] + options.fixed[option]
    here = spent + np.where(rest > 0, options.seconds[option], 0.0)
    handing = (rest > 0) & (end < options.last)
    found = _States(
        boundary=np.concatenate([end, end[handing]]),
        handed=np.concatenate([np.zeros_like(end), rest[handing]]),
        seconds=np.concatenate([here, spent[handing]]),
        parent=np.concatenate([start, start[handing]]),
        option=np.concatenate([option, option[handing]]),
    )
    after = np.append(per_row[1:], 0.0)
    keep = found.seconds + bound[found.boundary] + found.handed * after[found.boundary] <= limit
    return _undominated(_select(found, np.flatnonzero(keep)))


def _undominated(states: _States) -> _States:
    """Drop a state when another at its boundary hands on no more rows and costs no more: rows only ever add seconds."""
    order = np.lexsort((states.option, states.seconds, states.handed, states.boundary))
    ordered = _select(states, order)
    if not len(order):
        return ordered
    # A running minimum per boundary, over ranks: a boundary's ranks lie below those of all boundaries before it.
    _, rank = np.unique(ordered.seconds, return_inverse=True)
    height = rank + (ordered.boundary.max() - ordered.boundary) * (len(order) + 1)
    lowest = np.minimum.accumulate(height)
    better = np.concatenate([[True], height[1:] < lowest[:-1]])
    return _select(ordered, np.flatnonzero(better))


def _select(states: _States, index: Ints) -> _States:
    return _States(
        states.boundary[index],
        states.handed[index],
        states.seconds[index],
        states.parent[index],
        states.option[index],
    )


def _final_seconds(states: _States, last: int) -> float:
    return float(states.seconds[states.boundary == last].min(initial=np.inf))


def _option_ranges(options: Options) -> tuple[Ints, Ints]:
    """First option of each boundary and how many it has; options are sorted by boundary."""
    first = np.searchsorted(options.boundary, np.arange(options.last + 1), side="left")
    beyond = np.searchsorted(options.boundary, np.arange(options.last + 1), side="right")
    return first, beyond - first


def _per_row(options: Options) -> Floats:
    """(boundaries,): least seconds per row in any shape that ends at the boundary or later, in full batches."""
    least = np.full(options.last + 1, np.inf)
    np.minimum.at(least, options.boundary, options.seconds / options.batch)
    least[0] = 0.0
    least[1:] = np.minimum.accumulate(least[1:][::-1])[::-1]
    return least


def _lower_bounds(options: Options, max_graphs: int) -> Floats:
    """(graphs, boundaries): seconds of the rows above a boundary with that many graphs, never above the truth."""
    fixed = np.full(options.last + 1, np.inf)
    np.minimum.at(fixed, options.boundary, options.fixed)
    rows = np.maximum(options.below[None, :] - options.below[:, None], 0)
    segment = rows * _per_row(options)[None, :] + fixed[None, :]
    segment[np.tril_indices(options.last + 1)] = np.inf
    bound = np.full((max_graphs + 1, options.last + 1), np.inf)
    bound[:, options.last] = 0.0
    for graphs in range(1, max_graphs + 1):
        through = (segment + bound[graphs - 1][None, :]).min(axis=1)
        bound[graphs, : options.last] = through[: options.last]
    return bound


def _without_handing_on(options: Options, max_graphs: int) -> list[int]:
    """The cheapest plan when each shape runs its own partial batch: a good one, found by plain dynamic programming."""
    segment = np.full((options.last + 1, options.last + 1), np.inf)
    option = np.zeros(segment.shape, np.int64)
    for index, end in enumerate(options.boundary):
        rows = options.below[end] - options.below[:end]
        seconds = -(-rows // options.batch[index]) * options.seconds[index] + options.fixed[index]
        better = seconds < segment[:end, end]
        segment[:end, end][better] = seconds[better]
        option[:end, end][better] = index
    best = np.full((max_graphs + 1, options.last + 1), np.inf)
    best[0, 0] = 0.0
    came_from = np.zeros(best.shape, np.int64)
    for graphs in range(1, max_graphs + 1):
        through = best[graphs - 1][:, None] + segment
        came_from[graphs] = through.argmin(axis=0)
        best[graphs] = through.min(axis=0)
    graphs, end = int(best[:, options.last].argmin()), options.last
    chosen: list[int] = []
    while graphs:
        start = int(came_from[graphs, end])
        chosen.append(int(option[start, end]))
        end, graphs = start, graphs - 1
    return chosen[::-1]
