"""Shapes and plans: parsing, lookup by length, stable digests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compile.shapes import Shape, ShapePlan, canonical_json


def plan_of(*shapes: str) -> ShapePlan:
    return ShapePlan(tuple(Shape.parse(text) for text in shapes), (0.5,) * len(shapes), (True,) * len(shapes))


def test_a_shape_reads_and_writes_itself() -> None:
    shape = Shape.parse("16x128")
    assert (shape.batch, shape.length, shape.slot_tokens, str(shape)) == (16, 128, 2048, "16x128")


@pytest.mark.parametrize("text", ["", "16", "x", "16x", "x128", "16x-1", "0x8", "8x0", "16X128", "1.5x8", "16x128x2"])
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"shape|int"):
        Shape.parse(text)


def test_a_plan_wants_ascending_distinct_lengths() -> None:
    for shapes in (["8x64", "8x32"], ["8x64", "4x64"], []):
        with pytest.raises(ValueError, match="ascending"):
            plan_of(*shapes)


@given(st.sets(st.integers(1, 300), min_size=1, max_size=10), st.integers(0, 320))
def test_a_length_goes_to_the_shortest_shape_that_holds_it(lengths: set[int], length: int) -> None:
    plan = plan_of(*(f"4x{each}" for each in sorted(lengths)))
    holding = [index for index, shape in enumerate(plan.shapes) if shape.length >= length]
    if holding:
        assert plan.index_for(length) == holding[0]
    else:
        with pytest.raises(ValueError, match="longest shape"):
            plan.index_for(length)


def test_a_plan_survives_json_and_its_digest_names_the_shapes_only() -> None:
    plan = plan_of("32x16", "8x128")
    assert ShapePlan.from_json(plan.to_json()) == plan
    measured_again = ShapePlan(plan.shapes, (0.7, 0.9), (False, True))
    assert measured_again.digest == plan.digest != plan_of("32x16", "8x136").digest


def test_canonical_json_has_one_form() -> None:
    assert (
        canonical_json({"b": [1, 2], "a": "ä"})
        == canonical_json({"a": "ä", "b": [1, 2]})
        == '{"a":"ä","b":[1,2]}'.encode()
    )
