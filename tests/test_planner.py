"""The planner against exhaustive search, on small grids, and its promises on realistic ones."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from compile.costs import default_costs
from compile.planner import (
    executions,
    make_plan,
    padding_efficiency,
    plan_shapes,
    powers_of_two,
    predicted_seconds,
)
from compile.shapes import Shape, ShapePlan
from compile.targets.encoders import cpu_candidates


@dataclass(frozen=True)
class TableCosts:
    """Seconds as a table says, whole numbers so that sums are exact."""

    table: dict[Shape, float] = field(default_factory=dict)

    def seconds(self, shape: Shape) -> tuple[float, bool]:
        return self.table[shape], True


def seconds_by_hand(plan: ShapePlan, counts: NDArray[np.int64]) -> float:
    """The cheapest way to run the rows, told row by row: each shape's last partial batch runs there or one shape up."""
    waiting = [0] * len(plan.shapes)
    for length, rows in enumerate(counts):
        if rows:
            waiting[next(i for i, shape in enumerate(plan.shapes) if shape.length >= length)] += int(rows)
    best = float("inf")
    for choice in itertools.product([False, True], repeat=len(plan.shapes) - 1):
        seconds, moved = 0.0, 0
        for rows, shape, cost, up in zip(waiting, plan.shapes, plan.seconds, (*choice, False), strict=True):
            full, rest = divmod(rows + moved, shape.batch)
            seconds += full * cost
            moved = rest if up else 0
            if rest and not up:
                seconds += cost
        best = min(best, seconds)
    return best


def cheapest_by_search(
    counts: NDArray[np.int64], costs: TableCosts, candidates: list[Shape], max_graphs: int, fixed: dict[Shape, float]
) -> float:
    last = max(shape.length for shape in candidates)
    best = float("inf")
    for number in range(1, max_graphs + 1):
        for shapes in itertools.combinations(candidates, number):
            lengths = [shape.length for shape in shapes]
            if len(set(lengths)) == number and lengths[-1] == last:
                plan = make_plan(shapes, costs)
                best = min(best, seconds_by_hand(plan, counts) + sum(fixed.get(shape, 0) for shape in shapes))
    return best


def random_problem(seed: int) -> tuple[NDArray[np.int64], TableCosts, list[Shape], int]:
    rng = np.random.default_rng(seed)
    lengths = sorted(rng.choice(np.arange(2, 30), size=rng.integers(2, 6), replace=False).tolist())
    counts = np.zeros(lengths[-1] + 1, np.int64)
    for _ in range(int(rng.integers(0, 12))):
        counts[rng.integers(1, len(counts))] += rng.integers(1, 20)
    candidates = [
        Shape(length=length, batch=int(batch))
        for length in lengths
        for batch in sorted(rng.choice(np.arange(1, 9), size=rng.integers(1, 3), replace=False))
    ]
    # Half of the costs grow with the slot tokens, the other half obey no rule: the planner must be exact for any.
    table = {
        shape: float(shape.slot_tokens + rng.integers(0, 20) if seed % 2 else rng.integers(1, 200))
        for shape in candidates
    }
    return counts, TableCosts(table), sorted(candidates), int(rng.integers(1, 5))


@pytest.mark.parametrize("block", range(10))
def test_the_plan_costs_as_little_as_exhaustive_search_finds(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        counts, costs, candidates, max_graphs = random_problem(seed)
        max_length = candidates[-1].length
        plan = plan_shapes(counts, costs, candidates, max_graphs, max_length)
        assert len(plan.shapes) <= max_graphs
        assert plan.max_length == max_length
        assert set(plan.shapes) <= set(candidates)
        expected = cheapest_by_search(counts, costs, candidates, max_graphs, {})
        assert predicted_seconds(plan, counts) == expected == seconds_by_hand(plan, counts), f"seed {seed}"


def test_a_price_per_graph_is_weighed_exactly() -> None:
    for seed in range(100):
        counts, costs, candidates, max_graphs = random_problem(seed)
        rng = np.random.default_rng(seed)
        fixed = {shape: float(rng.integers(0, 300)) for shape in candidates}
        plan = plan_shapes(counts, costs, candidates, max_graphs, candidates[-1].length, fixed_seconds=fixed)
        found = predicted_seconds(plan, counts) + sum(fixed[shape] for shape in plan.shapes)
        assert found == cheapest_by_search(counts, costs, candidates, max_graphs, fixed), f"seed {seed}"


def realistic_histogram(seed: int, max_length: int = 512) -> NDArray[np.int64]:
    """Lengths as text collections have them: one to three log-normal groups, from tweets to articles."""
    rng = np.random.default_rng(seed)
    groups = [
        rng.lognormal(rng.uniform(2.5, 5.8), rng.uniform(0.2, 1.0), int(rng.integers(50, 20_000)))
        for _ in range(int(rng.integers(1, 4)))
    ]
    lengths = np.clip(np.concatenate(groups).astype(np.int64), 3, max_length)
    return np.bincount(lengths, minlength=max_length + 1).astype(np.int64)


def hand_lists(counts: NDArray[np.int64], max_length: int, graphs: int) -> dict[str, list[Shape]]:
    """What people write down: lengths by some rule, about 1,024 slot tokens each."""
    ends = np.cumsum(counts) / counts.sum()
    quantiles = [int(np.searchsorted(ends, share)) for share in np.linspace(1 / graphs, 1, graphs)]
    steps = [max_length * step // graphs for step in range(1, graphs + 1)]
    lists = {"one shape": [max_length], "equal steps": steps, "equal shares": [*quantiles, max_length]}
    aligned = {name: sorted({-(-max(length, 8) // 8) * 8 for length in each}) for name, each in lists.items()}
    return {
        name: [Shape(length=length, batch=max(1, round(1024 / length))) for length in each]
        for name, each in aligned.items()
    }


@pytest.mark.parametrize("seed", range(50))
def test_the_plan_never_loses_to_a_hand_list(seed: int) -> None:
    counts, costs = realistic_histogram(seed), default_costs("openvino")
    usual = powers_of_two(512, costs)
    plans = {"powers of two": usual} | {
        name: make_plan(shapes, costs) for name, shapes in hand_lists(counts, 512, 8).items()
    }
    for name, other in plans.items():
        own = plan_shapes(counts, costs, cpu_candidates(512), max(8, len(other.shapes)), 512)
        assert predicted_seconds(own, counts) <= predicted_seconds(other, counts) * (1 + 1e-12), name
    same_number = plan_shapes(counts, costs, cpu_candidates(512), len(usual.shapes), 512)
    assert predicted_seconds(same_number, counts) < 0.99 * predicted_seconds(usual, counts)


def test_more_graphs_never_cost_more() -> None:
    counts, costs = realistic_histogram(7), default_costs("openvino")
    seconds = [
        predicted_seconds(plan_shapes(counts, costs, cpu_candidates(512), graphs, 512), counts)
        for graphs in range(1, 13)
    ]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] < seconds[0] / 2


def test_dear_graphs_are_chosen_only_when_they_pay_off() -> None:
    counts, costs = realistic_histogram(3), default_costs("openvino")
    candidates = cpu_candidates(512)
    free = plan_shapes(counts, costs, candidates, 12, 512)
    dear = plan_shapes(counts, costs, candidates, 12, 512, fixed_seconds=dict.fromkeys(candidates, 1e6))
    assert len(free.shapes) > 1
    assert len(dear.shapes) == 1


def test_a_hundred_million_rows_to_8192_tokens_are_planned_from_their_histogram() -> None:
    counts = realistic_histogram(11, 8192) * 10_000
    plan = plan_shapes(counts, default_costs("openvino"), cpu_candidates(8192), 16, 8192)
    assert plan.max_length == 8192
    assert len(plan.shapes) == 16
    assert padding_efficiency(plan, counts) > 0.8


def test_the_plan_is_the_same_in_every_process_and_for_every_hash_seed() -> None:
    program = (
        "import numpy as np\n"
        "from compile.costs import default_costs\n"
        "from compile.planner import plan_shapes\n"
        "from compile.targets.encoders import cpu_candidates\n"
        "counts = np.bincount(np.clip(np.random.default_rng(5).lognormal(4.5, 0.8, 9000), 3, 512).astype(int))\n"
        "print(plan_shapes(counts, default_costs('openvino'), set(cpu_candidates(512)), 8, 512).digest)\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(digests) == 1


def test_without_rows_the_plan_still_holds_the_longest_row_to_come() -> None:
    plan = plan_shapes(np.zeros(1, np.int64), default_costs("openvino"), cpu_candidates(500), 8, 500)
    assert [shape.length for shape in plan.shapes] == [500]
    assert predicted_seconds(plan, np.zeros(501, np.int64)) == 0
    assert padding_efficiency(plan, np.zeros(501, np.int64)) == 1


def test_a_last_shape_without_rows_gets_the_batch_that_is_cheapest_per_row() -> None:
    costs = TableCosts({Shape(8, 1): 10.0, Shape(64, 1): 10.0, Shape(64, 4): 20.0})
    counts = np.zeros(65, np.int64)
    counts[5] = 3
    plan = plan_shapes(counts, costs, [Shape(8, 1), Shape(64, 1), Shape(64, 4)], 2, 64)
    assert plan.shapes[-1] == Shape(64, 4)


def test_a_remainder_runs_in_free_places_of_the_next_shape() -> None:
    plan = ShapePlan((Shape(16, 8), Shape(32, 4)), (1.0, 1.0), (True, True))
    counts = np.zeros(33, np.int64)
    counts[10], counts[30] = 9, 3  # one row too many for a batch of 8, and one free place in the batch of 4
    assert executions(plan, counts) == (1, 1)
    counts[30] = 4  # no free place: moving the row up would not save a batch
    assert executions(plan, counts) == (2, 1)


def test_powers_of_two_end_at_the_longest_length() -> None:
    plan = powers_of_two(300, default_costs("openvino"))
    assert [str(shape) for shape in plan.shapes] == ["64x16", "32x32", "16x64", "8x128", "4x256", "3x300"]
    assert plan.measured == (False,) * 6


@pytest.mark.parametrize(
    ("counts", "candidates", "max_graphs", "max_length", "message"),
    [
        (np.array([0, 1]), [Shape(8, 1)], 0, 8, "at least one graph"),
        (np.array([0, 1]), [Shape(8, 1)], 1, 9, "no candidate shape holds 9"),
        (np.array([0] * 9 + [1]), [Shape(8, 1)], 1, 8, "rows of 9 tokens"),
        (np.array([0, -1]), [Shape(8, 1)], 1, 8, "at least 0"),
        (np.array([[0, 1]]), [Shape(8, 1)], 1, 8, "one row"),
    ],
)
def test_what_cannot_be_planned_is_said(
    counts: NDArray[np.int64], candidates: list[Shape], max_graphs: int, max_length: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        plan_shapes(counts, default_costs("openvino"), candidates, max_graphs, max_length)


def test_rows_beyond_the_plan_are_an_error_not_a_cut() -> None:
    plan = powers_of_two(64, default_costs("openvino"))
    counts = np.zeros(80, np.int64)
    counts[70] = 2
    with pytest.raises(ValueError, match="2 rows exceed"):
        predicted_seconds(plan, counts)
