"""When the rejects of a run are too many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.budget import check_budget
from pipeline.errors import RejectBudgetError
from pipeline.job import RejectBudget


def budget(**limits: float) -> RejectBudget:
    return RejectBudget.model_validate(limits)


@pytest.mark.parametrize(
    ("limits", "rows", "rejects"),
    [
        ({}, 0, 0),
        ({}, 100, 1),
        ({"share": 0}, 10, 0),
        ({"share": 1}, 10, 10),
        ({"share": 0.29}, 100, 29),  # 0.29 * 100 is 28.999999999999996 in floats
        ({"share": 0.07}, 100, 7),
        ({"rows": 3, "share": 1}, 10, 3),
    ],
)
def test_within_the_budget(limits: dict[str, float], rows: int, rejects: int) -> None:
    check_budget(budget(**limits), rows, [{"null_text": rejects}])


@pytest.mark.parametrize(
    ("limits", "rows", "rejects", "said"),
    [
        ({}, 100, 2, "reject_budget.share allows 1.00%, which is 1 rows"),
        ({"share": 0}, 10, 1, "reject_budget.share allows 0.00%, which is 0 rows"),
        ({"share": 0.29}, 100, 30, "reject_budget.share allows 29.00%, which is 29 rows"),
        ({"rows": 3, "share": 1}, 10, 4, "reject_budget.rows allows 3"),
        ({"rows": 0, "share": 0}, 2, 2, "reject_budget.rows allows 0; reject_budget.share allows 0.00%"),
    ],
)
def test_over_the_budget(limits: dict[str, float], rows: int, rejects: int, said: str) -> None:
    with pytest.raises(RejectBudgetError) as raised:
        check_budget(budget(**limits), rows, [{"null_text": rejects}])
    assert said in str(raised.value)


def test_the_error_says_how_many_which_and_why_with_the_most_frequent_first() -> None:
    with pytest.raises(RejectBudgetError) as raised:
        check_budget(budget(), 4_000, [{"too_long": 20, "null_text": 980}, {"null_text": 1_000}])
    lines = str(raised.value).splitlines()
    assert lines[0].startswith("2,000 of 4,000 rows were rejected (50.00%), more than the job allows")
    assert lines[0].endswith("Nothing was published.")
    assert [line.split()[:2] for line in lines[1:3]] == [["1,980", "null_text"], ["20", "too_long"]]


@given(st.integers(0, 10_000), st.integers(1, 10_000))
def test_a_share_that_is_a_whole_number_of_rows_allows_exactly_that_many(allowed_bp: int, hundreds: int) -> None:
    """Shares of whole basis points of a multiple of 10,000 rows."""
    rows, allowed = 10_000 * hundreds, allowed_bp * hundreds
    check_budget(budget(share=allowed_bp / 10_000), rows, [{"null_text": allowed}])
    if allowed < rows:
        with pytest.raises(RejectBudgetError):
            check_budget(budget(share=allowed_bp / 10_000), rows, [{"null_text": allowed + 1}])
