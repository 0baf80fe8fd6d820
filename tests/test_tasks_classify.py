"""From logits to labels and scores, for each kind of problem; a row's columns depend on its own logits only."""

from __future__ import annotations

import warnings

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from pipeline.job import parse_job
from pipeline.tasks import load_task
from pipeline.tasks.classify import logits_array

TASK = load_task("classify")
JOB = {"name": "j", "model": {"uri": "m"}, "input": {"uri": "i/", "text": "t"}}
LABELS = ("neg", "mid", "pos")
LOGITS = np.array([[0, 0, 0], [1, 3, 2], [-1000, 1000, 0]], np.float32)


def table(
    logits: NDArray[np.float32], problem_type: str, all_scores: bool, labels: tuple[str, ...] = LABELS
) -> pa.Table:
    job = parse_job(JOB | {"output": {"uri": "o", "all_scores": all_scores}}, "job")
    schema = pa.schema(TASK.fields(job, labels, problem_type))
    return pa.Table.from_arrays(TASK.columns(logits_array(logits), job, labels, problem_type), schema=schema)


def test_single_label() -> None:
    found = table(LOGITS, "single_label", all_scores=True)
    assert found.schema.names == ["label", "score", "scores"]
    assert found["label"].to_pylist() == ["neg", "mid", "mid"], "of equal scores the first label wins"
    assert found["score"].to_pylist() == pytest.approx([1 / 3, 0.66524096, 1.0])
    assert found["scores"].to_pylist()[1] == pytest.approx([0.09003057, 0.66524096, 0.24472848])
    assert table(LOGITS, "single_label", all_scores=False).schema.names == ["label", "score"]


def test_multi_label() -> None:
    found = table(np.array([[0, -1, 1], [-2, -3, -1], [-1000, 1000, 0]], np.float32), "multi_label", all_scores=True)
    assert found.schema.names == ["label", "score", "labels", "scores"]
    assert found["labels"].to_pylist() == [["neg", "pos"], [], ["mid", "pos"]], "a probability of 0.5 is given"
    assert found["label"].to_pylist() == ["pos", "pos", "mid"]
    assert found["score"].to_pylist() == pytest.approx([0.7310586, 0.26894143, 1.0])
    assert found["scores"].to_pylist()[2] == [0.0, 1.0, 0.5]


def test_regression() -> None:
    found = table(np.array([[1.5], [-2.0]], np.float32), "regression", all_scores=True, labels=("value",))
    assert found.to_pydict() == {"score": [1.5, -2.0]}


@pytest.mark.parametrize("problem_type", ["single_label", "multi_label", "regression"])
@pytest.mark.parametrize("all_scores", [True, False])
def test_no_rows_have_the_declared_columns(problem_type: str, all_scores: bool) -> None:
    assert table(np.empty((0, 3), np.float32), problem_type, all_scores).num_rows == 0


FLOATS = st.floats(-1e4, 1e4, width=32)


@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 40), st.integers(1, 20)), elements=FLOATS),
    st.sampled_from(["single_label", "multi_label", "regression"]),
)
def test_a_row_depends_on_its_own_logits_only(logits: NDArray[np.float32], problem_type: str) -> None:
    labels = tuple(f"label-{index}" for index in range(logits.shape[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = table(logits, problem_type, all_scores=True, labels=labels)
        alone = [table(row[None], problem_type, all_scores=True, labels=labels) for row in logits]
    assert whole.equals(pa.concat_tables(alone).combine_chunks())


@given(hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=FLOATS))
def test_scores_are_probabilities_and_the_label_has_the_best(logits: NDArray[np.float32]) -> None:
    labels = tuple(map(str, range(logits.shape[1])))
    found = table(logits, "single_label", all_scores=True, labels=labels)
    for row, label, score, scores in zip(
        logits, *(found[name].to_pylist() for name in found.schema.names), strict=True
    ):
        assert sum(scores) == pytest.approx(1, abs=1e-5)
        assert score == max(scores) == scores[int(label)]
        assert row[int(label)] == pytest.approx(row.max(), abs=1e-3)


def test_an_unknown_task_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(ValueError, match="unknown task 'embed'; choose one of: classify, generate"):
        load_task("embed")
