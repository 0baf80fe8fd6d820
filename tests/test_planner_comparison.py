"""The table and the picture of a plan: counts add up, and it is set against what one would do without planning."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from compile.comparison import compare_plans, describe_shapes
from compile.costs import default_costs
from compile.picture import PADDING, REAL, plan_picture
from compile.planner import padding_efficiency, plan_shapes, predicted_seconds
from compile.shapes import Shape, ShapePlan
from compile.targets.encoders import cpu_candidates

COSTS = default_costs("openvino")
COUNTS = np.bincount(np.clip(np.random.default_rng(2).lognormal(4.4, 0.7, 30_000), 3, 512).astype(int), minlength=513)
PLAN = plan_shapes(COUNTS, COSTS, cpu_candidates(512), 8, 512)


def test_lines_of_shapes_add_up_to_the_whole() -> None:
    lines = describe_shapes(PLAN, COUNTS)
    assert [line.shape for line in lines] == list(PLAN.shapes)
    assert sum(line.rows for line in lines) == 30_000
    real, slots = sum(line.real_tokens for line in lines), sum(line.slot_tokens for line in lines)
    assert real == int((np.arange(513) * COUNTS).sum())
    assert real / slots == padding_efficiency(PLAN, COUNTS)
    assert sum(line.seconds for line in lines) == pytest.approx(predicted_seconds(PLAN, COUNTS))


def test_the_plan_is_compared_with_fewer_more_and_the_usual_graphs() -> None:
    lines = {line.name: line for line in compare_plans(PLAN, COUNTS, COSTS, cpu_candidates(512), 512)}
    assert next(iter(lines)) == "this plan"
    graphs = {name: len(line.plan.shapes) for name, line in lines.items()}
    assert graphs == {
        "this plan": 8,
        "one graph fewer": 7,
        "one graph more": 9,
        "powers of two (6)": 6,
        "planned with 6": 6,
        "one maximal shape": 1,
    }
    seconds = {name: line.seconds for name, line in lines.items()}
    assert seconds["one graph more"] <= seconds["this plan"] <= seconds["one graph fewer"] <= seconds["planned with 6"]
    assert seconds["planned with 6"] < seconds["powers of two (6)"] < seconds["one maximal shape"]
    assert lines["this plan"].efficiency == padding_efficiency(PLAN, COUNTS)


def test_a_plan_of_one_graph_is_compared_too() -> None:
    one = plan_shapes(COUNTS, COSTS, cpu_candidates(512), 1, 512)
    names = [line.name for line in compare_plans(one, COUNTS, COSTS, cpu_candidates(512), 512)]
    assert "one graph fewer" not in names


def area(picture: str, colour: str) -> float:
    root = ElementTree.fromstring(picture)
    spaces = {"s": "http://www.w3.org/2000/svg"}
    bars = root.findall(f".//s:g[@fill='{colour}']/s:rect", spaces)
    return sum(float(bar.get("width", 0)) * float(bar.get("height", 0)) for bar in bars)


def test_areas_of_the_picture_are_real_and_slot_tokens() -> None:
    counts = np.zeros(65, np.int64)
    counts[8], counts[40] = 16, 4
    plan = ShapePlan((Shape(16, 16), Shape(64, 4)), (1.0, 1.0), (True, True))
    picture = plan_picture(plan, counts)
    assert area(picture, REAL) / area(picture, PADDING) == pytest.approx(padding_efficiency(plan, counts), rel=1e-3)
    assert "0.562" in picture
    assert ">16x16<" in picture
    assert ">4x64<" in picture


def test_the_picture_of_no_rows_is_a_picture() -> None:
    picture = plan_picture(PLAN, np.zeros(513, np.int64))
    assert area(picture, PADDING) == 0
    assert ElementTree.fromstring(picture).tag.endswith("svg")


def test_rows_beyond_the_plan_have_no_picture() -> None:
    counts = np.zeros(600, np.int64)
    counts[590] = 1
    with pytest.raises(ValueError, match="longest shape"):
        plan_picture(PLAN, counts)


def test_a_shapes_line_counts_the_rows_that_run_in_it() -> None:
    """The ninth short row is handed to the longer shape, whose last batch has room for it."""
    plan = ShapePlan((Shape(8, 4), Shape(16, 2)), (1.0, 1.5), (True, True))
    counts = np.zeros(17, np.int64)
    counts[[3, 8, 9]] = [2, 7, 3]
    lines = describe_shapes(plan, counts)
    assert [(line.rows, line.batches, line.real_tokens) for line in lines] == [(8, 2, 2 * 3 + 6 * 8), (4, 2, 8 + 3 * 9)]
    assert all(line.real_tokens <= line.slot_tokens for line in lines)
