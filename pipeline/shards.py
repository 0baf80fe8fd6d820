"""How accepted rows become shards of one shape, and which worker starts with which. Pure: no data is moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from compile.remainders import place_remainders
from compile.shapes import ShapePlan
from pipeline.tokenized import SplitCounts

SHARD_SLOT_TOKENS = 1 << 18
"""Slot tokens of a shard: some seconds to half a minute of work on one core, and what a crash may cost per core."""


@dataclass(frozen=True, slots=True)
class Range:
    """Rows [start, stop) of a split's sorted order."""

    split: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A run of rows of one shape, from one or many splits: the unit of work, of checkpoint and of retry."""

    index: int
    shape: int
    """Index into the plan's shapes."""
    ranges: tuple[Range, ...]

    @property
    def rows(self) -> int:
        return sum(part.stop - part.start for part in self.ranges)


def cut_shards(
    splits: Sequence[SplitCounts],
    plan: ShapePlan,
    shard_slot_tokens: int = SHARD_SLOT_TOKENS,
    new_tokens: int = 0,
) -> list[Shard]:
    """Every accepted row in exactly one shard; only the last shard of a shape may end with a partial batch.

    A shape's last partial batch runs where it is cheapest at the plan's costs: there, or with the next longer shape.
    `new_tokens` are computed for each row beyond its length.
    """
    shards: list[Shard] = []
    for index, ranges in enumerate(_with_remainders(_shape_ranges(splits, plan), plan)):
        shape = plan.shapes[index]
        capacity = max(1, shard_slot_tokens // (shape.batch * (shape.length + new_tokens))) * shape.batch
        for group in _pack(ranges, capacity):
            shards.append(Shard(len(shards), index, tuple(group)))
    return shards


def _shape_ranges(splits: Sequence[SplitCounts], plan: ShapePlan) -> list[list[Range]]:
    """Per shape, the range of each split's sorted rows that goes to it."""
    bounds = [shape.length for shape in plan.shapes]
    ranges: list[list[Range]] = [[] for _ in bounds]
    for split in splits:
        ends = np.concatenate([[0], np.cumsum(split.counts, dtype=np.int64)])
        stops = [int(ends[np.searchsorted(split.lengths, bound, side="right")]) for bound in bounds]
        if stops[-1] != split.accepted:
            raise ValueError(f"split {split.split} has rows of over {bounds[-1]} tokens, the plan's longest shape")
        start = 0
        for index, stop in enumerate(stops):
            if stop > start:
                ranges[index].append(Range(split.split, start, stop))
            start = max(start, stop)
    return ranges


def _with_remainders(ranges: list[list[Range]], plan: ShapePlan) -> list[list[Range]]:
    """Hand the last rows of a shape to the next longer one where compile.remainders says so."""
    moves = place_remainders([sum(part.stop - part.start for part in own) for own in ranges], plan)
    placed: list[list[Range]] = []
    handed: list[Range] = []
    for own, move in zip(ranges, moves, strict=True):
        rows = sum(part.stop - part.start for part in (*handed, *own))
        kept, handed = _split_at([*handed, *own], rows - move)
        placed.append(kept)
    return placed


def _split_at(ranges: Sequence[Range], rows: int) -> tuple[list[Range], list[Range]]:
    """The first `rows` rows, and the others."""
    first, rest = [], []
    for part in ranges:
        cut = min(part.stop, part.start + max(0, rows))
        rows -= part.stop - part.start
        if cut > part.start:
            first.append(Range(part.split, part.start, cut))
        if cut < part.stop:
            rest.append(Range(part.split, cut, part.stop))
    return first, rest


def _pack(ranges: Sequence[Range], capacity: int) -> Iterator[list[Range]]:
    group: list[Range] = []
    room = capacity
    for part in ranges:
        start = part.start
        while start < part.stop:
            stop = min(part.stop, start + room)
            group.append(Range(part.split, start, stop))
            room -= stop - start
            start = stop
            if room == 0:
                yield group
                group, room = [], capacity
    if group:
        yield group


@dataclass(frozen=True, slots=True)
class Place:
    """Where a range of a split lies in the result of a shard: rows [start, stop) of it."""

    shard: Shard
    part: Range
    start: int
    stop: int


def places_by_split(shards: Sequence[Shard]) -> dict[int, list[Place]]:
    """Per split that has rows, the places of all its ranges; found in one pass over the shards."""
    places: dict[int, list[Place]] = {}
    for shard in shards:
        start = 0
        for part in shard.ranges:
            stop = start + part.stop - part.start
            places.setdefault(part.split, []).append(Place(shard, part, start, stop))
            start = stop
    return places


def rows_per_shape(shards: Sequence[Shard], shapes: int) -> list[int]:
    """Rows that run in each shape."""
    rows = [0] * shapes
    for shard in shards:
        rows[shard.shape] += shard.rows
    return rows


def shard_seconds(shard: Shard, plan: ShapePlan) -> float:
    """Predicted seconds of a shard on one core."""
    return -(-shard.rows // plan.shapes[shard.shape].batch) * plan.seconds[shard.shape]


def assign(shards: Sequence[Shard], plan: ShapePlan, workers: int) -> list[list[int]]:
    """Shard indexes per worker: longest processing time first, and each worker's list longest shape first.

    The greedy bound of 4/3 of the optimal makespan holds (Graham 1969); a worker that ends early takes from the others.
    """
    loads = [0.0] * workers
    lists: list[list[int]] = [[] for _ in range(workers)]
    for shard in sorted(shards, key=lambda item: (-shard_seconds(item, plan), item.index)):
        lightest = loads.index(min(loads))
        lists[lightest].append(shard.index)
        loads[lightest] += shard_seconds(shard, plan)
    by_index = {shard.index: shard for shard in shards}
    return [sorted(owned, key=lambda index: (-by_index[index].shape, index)) for owned in lists]
