"""The comparison behind the parity gate: distances, clear labels, NaN, and what makes a record fail."""

from __future__ import annotations

import json

import numpy as np
import pytest

from compile.parity import TOLERANCES, ParityRecord, Tolerance, compare, judge, labels_of

STRICT = Tolerance(max_abs_logit=0.01, mean_abs_logit=0.001)


def logits(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)


def test_equal_logits_pass() -> None:
    reference = logits([2.0, -1.0], [-3.0, 0.5])
    found = compare(reference, reference.copy(), "single_label")
    assert (found.max_abs_logit, found.mean_abs_logit, found.label_flips, found.nan_count) == (0, 0, 0, 0)
    assert found.clear_rows == 2
    assert found.scale == 3
    assert judge(found, STRICT) == ()


def test_distances_are_relative_to_the_largest_logit_but_never_to_less_than_one() -> None:
    small = compare(logits([0.1, 0.2]), logits([0.105, 0.2]), "single_label")
    assert judge(small, Tolerance(0.01, 0.01)) == ()
    assert judge(small, Tolerance(0.004, 0.01)) != ()
    large = compare(logits([10.0, 0.2]), logits([10.05, 0.2]), "single_label")
    assert judge(large, Tolerance(0.01, 0.01)) == ()
    assert judge(large, Tolerance(0.004, 0.01)) != ()


def test_each_reason_is_told() -> None:
    reference = logits([2.0, -2.0], [2.0, -2.0], [2.0, -2.0])
    reasons = judge(
        compare(reference, logits([np.nan, -2.0], [-2.0, 2.0], [2.0, -2.0]), "single_label"), STRICT, moved_rows=1
    )
    assert len(reasons) == 5
    for part in ("1 logits are NaN", "largest logit difference", "mean logit difference", "1 of 2 clear", "1 rows"):
        assert any(part in reason for reason in reasons), part


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_no_tolerance_lets_a_nan_pass(value: float) -> None:
    endless = Tolerance(np.inf, np.inf, 1.0)
    assert judge(compare(logits([1.0, 0.0]), logits([value, 0.0]), "single_label"), endless) != ()
    assert judge(compare(logits([value, 0.0]), logits([1.0, 0.0]), "single_label"), endless) != ()


def test_a_near_tie_may_fall_either_way_a_clear_label_may_not() -> None:
    near = compare(logits([0.001, 0.0]), logits([0.0, 0.001]), "single_label")
    assert (near.label_flips, near.clear_rows) == (0, 0)
    clear = compare(logits([0.5, 0.0]), logits([0.0, 0.5]), "single_label")
    assert (clear.label_flips, clear.clear_rows) == (1, 1)


def test_multi_label_counts_a_row_when_any_of_its_labels_flips() -> None:
    reference = logits([2.0, -2.0, 2.0], [2.0, 2.0, 2.0])
    found = compare(reference, logits([2.0, 2.0, -2.0], [2.0, 2.0, 2.0]), "multi_label")
    assert found.label_flips == 1
    labels, _ = labels_of(reference, "multi_label")
    assert labels.tolist() == [[True, False, True], [True, True, True]]


def test_regression_has_no_labels_to_flip() -> None:
    found = compare(logits([0.5], [-0.5]), logits([-0.5], [0.5]), "regression")
    assert (found.label_flips, found.clear_rows, found.max_abs_logit) == (0, 0, 1.0)


def test_shares_of_flips_are_of_clear_rows() -> None:
    reference = np.tile(logits([1.0, 0.0]), (10, 1))
    other = reference.copy()
    other[0] = [0.0, 1.0]
    found = compare(reference, other, "single_label")
    assert judge(found, Tolerance(2, 2, 0.1)) == ()
    assert judge(found, Tolerance(2, 2, 0.09)) != ()


@pytest.mark.parametrize("shape", [(0, 2), (3,), (2, 3)])
def test_what_cannot_be_compared_is_an_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="cannot compare"):
        compare(
            np.zeros((2, 2), np.float32) if shape == (2, 3) else np.zeros(shape, np.float32),
            np.zeros(shape, np.float32),
            "regression",
        )


def test_a_record_survives_json() -> None:
    record = ParityRecord(
        passed=False,
        reasons=("because",),
        rows=7,
        max_abs_logit=0.5,
        mean_abs_logit=0.1,
        label_flips=1,
        nan_count=2,
        moved_rows=0,
        lengths=(3, 9),
        made_rows=1,
        tolerance=TOLERANCES["bf16"],
        versions={"torch": "2.13.0"},
    )
    assert ParityRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
