"""Every accepted row is in exactly one shard of the shape that its length asks for, whatever the histogram."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compile.shapes import Shape, ShapePlan
from pipeline.shards import Range, Shard, assign, cut_shards, rows_per_shape, shard_seconds
from pipeline.tokenized import SplitCounts

LONGEST = 64


def counts_of(split: int, histogram: dict[int, int]) -> SplitCounts:
    lengths = tuple(sorted(histogram))
    rows = sum(histogram.values())
    counts = tuple(histogram[length] for length in lengths)
    return SplitCounts(split, lengths, counts, "<u2", rows, 0, {}, 0, 0, (rows,))


@st.composite
def plans(draw: st.DrawFn) -> ShapePlan:
    lengths = sorted({*draw(st.sets(st.integers(1, LONGEST - 1), max_size=5)), LONGEST})
    shapes = tuple(Shape(length, draw(st.integers(1, 9))) for length in lengths)
    seconds = tuple(draw(st.floats(0.001, 10)) for _ in shapes)
    return ShapePlan(shapes, seconds, (True,) * len(shapes))


HISTOGRAMS = st.lists(st.dictionaries(st.integers(1, LONGEST), st.integers(1, 40), max_size=8), max_size=5)


@given(HISTOGRAMS, plans(), st.integers(1, 600))
def test_every_row_is_in_exactly_one_shard_of_its_shape(
    histograms: list[dict[int, int]], plan: ShapePlan, slot_tokens: int
) -> None:
    splits = [counts_of(index, histogram) for index, histogram in enumerate(histograms)]
    shards = cut_shards(splits, plan, slot_tokens)
    assert [shard.index for shard in shards] == list(range(len(shards)))
    placed = Counter(
        (part.split, row) for shard in shards for part in shard.ranges for row in range(part.start, part.stop)
    )
    assert placed == Counter((split.split, row) for split in splits for row in range(split.accepted))
    lengths = [
        [length for length, count in zip(split.lengths, split.counts, strict=True) for _ in range(count)]
        for split in splits
    ]
    handed_on: Counter[int] = Counter()
    for shard in shards:
        for part in shard.ranges:
            assert part.start < part.stop
            own = [plan.index_for(length) for length in lengths[part.split][part.start : part.stop]]
            assert max(own) <= shard.shape, "every row fits"
            handed_on[shard.shape] += sum(index < shard.shape for index in own)
    # Only a last partial batch is handed on, and only where that does not cost more.
    assert all(handed_on[index] < plan.shapes[index - 1].batch for index in range(len(plan.shapes)))
    at_home = Counter(plan.index_for(length) for split in lengths for length in split)
    batches = [-(-at_home[index] // shape.batch) for index, shape in enumerate(plan.shapes)]
    plain = sum(count * seconds for count, seconds in zip(batches, plan.seconds, strict=True))
    rows = rows_per_shape(shards, len(plan.shapes))
    placed_seconds = sum(
        -(-count // shape.batch) * seconds
        for count, shape, seconds in zip(rows, plan.shapes, plan.seconds, strict=True)
    )
    assert placed_seconds <= plain * (1 + 1e-12)


@given(HISTOGRAMS, plans(), st.integers(1, 600))
def test_only_the_last_shard_of_a_shape_is_partial(
    histograms: list[dict[int, int]], plan: ShapePlan, slot_tokens: int
) -> None:
    shards = cut_shards([counts_of(index, item) for index, item in enumerate(histograms)], plan, slot_tokens)
    for shape in range(len(plan.shapes)):
        of_shape = [shard for shard in shards if shard.shape == shape]
        sizes = [shard.rows for shard in of_shape]
        assert all(size % plan.shapes[shape].batch == 0 and size == sizes[0] for size in sizes[:-1])
        assert not sizes or 0 < sizes[-1] <= sizes[0]
        slots = [-(-size // plan.shapes[shape].batch) * plan.shapes[shape].slot_tokens for size in sizes]
        assert all(used <= max(slot_tokens, plan.shapes[shape].slot_tokens) for used in slots)


@given(HISTOGRAMS, plans(), st.integers(1, 9))
def test_assign_covers_every_shard_once_and_balances(
    histograms: list[dict[int, int]], plan: ShapePlan, workers: int
) -> None:
    shards = cut_shards([counts_of(index, item) for index, item in enumerate(histograms)], plan, 256)
    lists = assign(shards, plan, workers)
    assert lists == assign(list(reversed(shards)), plan, workers), "the order in which shards are given does not matter"
    assert len(lists) == workers
    assert sorted(index for owned in lists for index in owned) == [shard.index for shard in shards]
    for owned in lists:
        shapes = [shards[index].shape for index in owned]
        assert shapes == sorted(shapes, reverse=True), "each worker loads a shape once, the longest first"
    seconds = [shard_seconds(shard, plan) for shard in shards]
    loads = [sum(seconds[index] for index in owned) for owned in lists]
    # List scheduling: the worker that ends last was the least loaded when it took its last shard.
    assert max(loads) <= sum(seconds) / workers + max(seconds, default=0.0) + 1e-9


@given(st.lists(st.integers(1, 9), max_size=6), st.integers(1, 3))
def test_assign_is_within_four_thirds_of_the_best(batches: list[int], workers: int) -> None:
    plan = ShapePlan((Shape(8, 1),), (1.0,), (True,))
    shards = [Shard(index, 0, (Range(0, 0, count),)) for index, count in enumerate(batches)]
    loads = [sum(batches[index] for index in owned) for owned in assign(shards, plan, workers)]
    best = min(
        max(
            sum(count for count, owner in zip(batches, owners, strict=True) if owner == worker)
            for worker in range(workers)
        )
        for owners in itertools.product(range(workers), repeat=len(batches))
    )
    assert max(loads) <= (4 / 3 - 1 / (3 * workers)) * best


def test_a_small_example() -> None:
    plan = ShapePlan((Shape(8, 4), Shape(16, 2)), (1.0, 1.5), (True, True))
    splits = [counts_of(0, {3: 2, 8: 1, 9: 3}), counts_of(1, {8: 6}), counts_of(2, {})]
    assert cut_shards(splits, plan, 64) == [
        Shard(0, 0, (Range(0, 0, 3), Range(1, 0, 5))),
        Shard(1, 1, (Range(1, 5, 6), Range(0, 3, 6))),  # the ninth short row fills the last batch of the long shape
    ]
    shards = cut_shards(splits, plan, 64)
    assert [shard_seconds(shard, plan) for shard in shards] == [2.0, 3.0]
    assert assign(shards, plan, 2) == [[1], [0]]
    assert assign(shards, plan, 4) == [[1], [0], [], []]


def test_rows_that_are_too_long_for_the_plan_are_an_error() -> None:
    plan = ShapePlan((Shape(8, 4),), (1.0,), (True,))
    with pytest.raises(ValueError, match="split 7 has rows of over 8 tokens"):
        cut_shards([counts_of(7, {9: 1})], plan)


def test_no_rows_are_no_shards() -> None:
    plan = ShapePlan((Shape(8, 4),), (1.0,), (True,))
    assert cut_shards([], plan) == cut_shards([counts_of(0, {})], plan) == []
    assert assign([], plan, 2) == [[], []]
