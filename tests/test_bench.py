"""The benchmark's own arithmetic, and that its rows are there and stay the same."""

from __future__ import annotations

import random

import pytest

from bench.bound import LENGTHS, Pass, Passes, bound_s
from bench.comparison import BOUND, EXECUTING, EXPERT, GOALS, LENGTHWISE, Cost, table
from bench.quick import ROWS, Night, Round, Started, per_thousand, stratified
from bench.rows import SETS


def test_the_bound_charges_each_row_for_its_own_tokens() -> None:
    assert bound_s([], [1.0] * len(LENGTHS)) == 0
    assert bound_s([8, 100, 512], [0.5] * len(LENGTHS)) == pytest.approx(310)
    speeds = [float(length) for length in LENGTHS]
    assert bound_s([20], speeds) == pytest.approx(20 * 20)  # interpolated between 16 and 32
    assert bound_s([3], speeds) == pytest.approx(3 * 8)  # nothing shorter was measured


def test_a_stratified_sample_keeps_the_lengths_and_the_order() -> None:
    rng = random.Random(7)
    texts = [f"{number:04d}" + "x" * rng.randrange(1000) for number in range(1000)]
    sample = stratified(texts, 100)
    assert len(sample) == 100
    assert sample == [text for text in texts if text in set(sample)]
    assert sum(map(len, sample)) / 100 == pytest.approx(sum(map(len, texts)) / 1000, rel=0.02)
    assert stratified(texts, len(texts)) == texts


def test_the_rows_are_distinct_and_long_or_short_as_named() -> None:
    for name, texts in SETS.items():
        rows = texts()[: ROWS[name]]
        assert len(rows) == len(set(rows)) == ROWS[name]
        assert texts()[: ROWS[name]] == rows
        words = sorted(len(text.split()) for text in rows)[len(rows) // 2]
        assert (words < 30) == (name == "tweets")


def test_the_table_says_how_many_times_faster() -> None:
    seconds = {LENGTHWISE: 2.0, EXPERT: 3.0, EXECUTING: 1.6, BOUND: 1.5} | {who: 20.0 for who in GOALS if who != EXPERT}
    text = table({"tweets": {who: Cost(0.0, value) for who, value in seconds.items()}})
    assert text.count("10.00x") == 2
    assert "1.50x" in text
    assert "94% of the bound while executing" in text
    assert "75% end to end" in text


def test_loading_and_starting_are_not_charged_to_the_rows() -> None:
    night, small = Night(total_s=20.0, load_s=2.0, execute_s=14.0), Night(total_s=4.0, load_s=0.5, execute_s=1.0)
    found = Round(night, 12.0, Started(small, 12.0), Cost(1.0, 20.0), 16.0).costs()
    assert found[LENGTHWISE] == Cost(start_s=4.5, loop_s=15.5)
    assert per_thousand([found[LENGTHWISE]] * 2, 500) == Cost(start_s=4.5, loop_s=31.0)
    assert found[EXPERT] == Cost(0.75, 15.0), "the core was slower while the expert's loop ran"
    assert (found[EXECUTING].loop_s, found[BOUND].loop_s) == (14.0, 12.0)
    slower = Round(night, 12.0, Started(small, 24.0), Cost(1.0, 20.0), 16.0).own
    assert slower == Cost(start_s=3.25, loop_s=16.75), "half of the small night's 2.5 s"
    faster = Round(night, 12.0, Started(small, 4.0), Cost(1.0, 20.0), 16.0).own
    assert faster == Cost(start_s=6.0, loop_s=14.0), "7.5 s of start would leave less than executing took"


def test_a_run_is_told_by_the_passes_of_its_time() -> None:
    fast, slow = ([[seconds, seconds * 2]] * len(LENGTHS) for seconds in (1.0, 3.0))
    passes = Passes([Pass(10.0, fast), Pass(20.0, slow), Pass(30.0, slow)])
    assert passes.seconds_per_token(0, 15) == [1.0] * len(LENGTHS)
    assert passes.seconds_per_token(15, 30) == [3.0] * len(LENGTHS)
    assert passes.seconds_per_token(0, 20) == [2.0] * len(LENGTHS)
    assert passes.seconds_per_token(21, 22) == [3.0] * len(LENGTHS), "none ended then: the last"
