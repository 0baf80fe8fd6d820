"""The cost model: measured values win, the fit recovers known costs and never goes below zero."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compile.costs import Coefficients, CostModel, default_costs, fit_costs
from compile.shapes import Shape

TRUTH = Coefficients(per_batch=2e-3, per_token=3e-5, per_token_length=1e-7)
GRID = [Shape(length=length, batch=batch) for length in (16, 64, 200, 512) for batch in (1, 4, 16)]


def test_measured_seconds_win_over_the_fit_and_say_so() -> None:
    costs = CostModel(TRUTH, {Shape(16, 4): 1.25})
    assert costs.seconds(Shape(16, 4)) == (1.25, True)
    assert costs.seconds(Shape(16, 8)) == (TRUTH.seconds(Shape(16, 8)), False)


def test_the_fit_recovers_the_costs_that_made_the_points() -> None:
    fitted = fit_costs({shape: TRUTH.seconds(shape) for shape in GRID}, default_costs("torch").fitted)
    for shape in (Shape(100, 7), Shape(1024, 2)):
        seconds, measured = fitted.seconds(shape)
        assert not measured
        assert seconds == pytest.approx(TRUTH.seconds(shape), rel=0.02)


def test_few_points_scale_the_default_costs() -> None:
    default = default_costs("openvino").fitted
    scaled = fit_costs({Shape(64, 8): 3 * default.seconds(Shape(64, 8))}, default)
    assert scaled.seconds(Shape(256, 4))[0] == pytest.approx(3 * default.seconds(Shape(256, 4)))


def test_shapes_of_equal_slot_tokens_do_not_make_batches_cost_and_tokens_free() -> None:
    truth = Coefficients(per_batch=1.2e-3, per_token=1.1e-4, per_token_length=8e-8)
    points = {Shape(1024 // batch, batch): truth.seconds(Shape(1024 // batch, batch)) for batch in (2, 4, 8, 16, 32)}
    fitted = fit_costs(points, default_costs("openvino").fitted)
    for shape in points:
        assert fitted.fitted.seconds(shape) == pytest.approx(truth.seconds(shape), rel=0.02)
    for shape in (Shape(64, 8), Shape(64, 32), Shape(512, 4), Shape(512, 1)):  # half and twice the slot tokens
        assert fitted.fitted.seconds(shape) == pytest.approx(truth.seconds(shape), rel=0.1)


def test_no_point_leaves_the_default_costs() -> None:
    assert fit_costs({}, TRUTH) == CostModel(TRUTH)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_fit_of_noisy_points_is_positive_and_near_them(seed: int) -> None:
    noise = np.random.default_rng(seed).uniform(0.9, 1.1, len(GRID))
    points = {shape: TRUTH.seconds(shape) * factor for shape, factor in zip(GRID, noise, strict=True)}
    fitted = fit_costs(points, TRUTH).fitted
    assert min(fitted.per_batch, fitted.per_token, fitted.per_token_length) >= 0
    for shape in GRID:
        assert fitted.seconds(shape) == pytest.approx(TRUTH.seconds(shape), rel=0.25)


def test_the_fit_does_not_depend_on_the_order_of_points() -> None:
    points = {shape: TRUTH.seconds(shape) * (1 + 0.01 * index) for index, shape in enumerate(GRID)}
    backwards = dict(reversed(points.items()))
    assert fit_costs(points, TRUTH).fitted == fit_costs(backwards, TRUTH).fitted
