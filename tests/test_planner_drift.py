"""Drift: a re-plan is worth what it saves on tonight's lengths less what it costs to compile."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compile.costs import default_costs
from compile.drift import measure_drift
from compile.planner import plan_shapes, predicted_seconds
from compile.remainders import executed_batches, place_remainders
from compile.shapes import Shape, ShapePlan
from compile.targets.encoders import cpu_candidates

COSTS = default_costs("openvino")


def night(median: float, rows: int = 20_000) -> np.ndarray:
    lengths = np.clip(np.random.default_rng(1).lognormal(np.log(median), 0.5, rows), 3, 512).astype(np.int64)
    return np.bincount(lengths, minlength=513).astype(np.int64)


def plan(counts: np.ndarray) -> ShapePlan:
    return plan_shapes(counts, COSTS, cpu_candidates(512), 6, 512)


def test_the_same_lengths_do_not_drift() -> None:
    frozen = plan(night(60))
    drift = measure_drift(frozen, plan(night(60)), night(60), COSTS, compile_seconds_per_shape=100)
    assert (drift.saved_seconds, drift.saved_share, drift.compile_seconds) == (0, 0, 0)


def test_shorter_rows_make_a_new_plan_pay_unless_compiling_is_dear() -> None:
    frozen, tonight = plan(night(250)), night(30)
    new = plan(tonight)
    cheap = measure_drift(frozen, new, tonight, COSTS, compile_seconds_per_shape=0.5)
    assert cheap.saved_share > 0.3
    assert cheap.replanned_efficiency > cheap.frozen_efficiency
    assert cheap.saved_seconds == pytest.approx(
        predicted_seconds(frozen, tonight) - predicted_seconds(new, tonight) - cheap.compile_seconds / 30
    )
    dear = measure_drift(frozen, new, tonight, COSTS, compile_seconds_per_shape=600, nights=1)
    assert dear.saved_seconds < 0


def test_a_night_without_rows_saves_nothing() -> None:
    empty = np.zeros(513, np.int64)
    assert measure_drift(plan(night(60)), plan(night(60)), empty, COSTS, 1).saved_share == 0


def test_each_graph_pays_for_being_loaded() -> None:
    tonight = night(60)
    many, one = plan(tonight), plan_shapes(tonight, COSTS, cpu_candidates(512), 1, 512)
    free, paid = (measure_drift(many, one, tonight, COSTS, 0, load_s=price) for price in (0.0, 3.0))
    assert len(many.shapes) > 1
    assert paid.saved_seconds == pytest.approx(free.saved_seconds + 3.0 * (len(many.shapes) - 1))


def test_no_nights_are_an_error() -> None:
    with pytest.raises(ValueError, match="at least one night"):
        measure_drift(plan(night(60)), plan(night(60)), night(60), COSTS, 1, nights=0)


shape_rows = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9), st.integers(1, 50)), min_size=1, max_size=6)


@given(shape_rows)
def test_remainders_move_whole_partial_batches_up_and_never_cost_more(given_shapes: list[tuple[int, int, int]]) -> None:
    rows = [own for own, _, _ in given_shapes]
    some = ShapePlan(
        tuple(Shape(length=8 * (index + 1), batch=batch) for index, (_, batch, _) in enumerate(given_shapes)),
        tuple(float(seconds) for _, _, seconds in given_shapes),
        (True,) * len(rows),
    )
    moves = place_remainders(rows, some)
    assert moves[-1] == 0
    handed = (0, *moves[:-1])
    for own, taken, given_on, shape in zip(rows, handed, moves, some.shapes, strict=True):
        assert given_on in (0, (own + taken) % shape.batch)
    batches = executed_batches(rows, some)
    capacity = sum(number * shape.batch for number, shape in zip(batches, some.shapes, strict=True))
    assert capacity >= sum(rows)
    in_place = sum(
        -(-own // shape.batch) * cost for own, shape, cost in zip(rows, some.shapes, some.seconds, strict=True)
    )
    assert sum(number * cost for number, cost in zip(batches, some.seconds, strict=True)) <= in_place


def test_one_count_per_shape_is_wanted() -> None:
    with pytest.raises(ValueError, match="2 row counts"):
        place_remainders([1, 2], ShapePlan((Shape(8, 1),), (1.0,), (True,)))
