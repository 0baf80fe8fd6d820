"""classify: logits to label and score, for one label, several labels or a single regression value."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.job import Job

MULTI_LABEL_THRESHOLD = 0.5
"""A label of a multi-label model is given when its probability reaches this, as in transformers' examples."""


class Classify:
    """single_label: softmax; multi_label: sigmoid per label; regression: the logit itself."""

    def output_type(self, labels: tuple[str, ...]) -> pa.DataType:
        return logits_type(max(1, len(labels)))

    def fields(self, job: Job, labels: tuple[str, ...], problem_type: str) -> list[pa.Field]:
        score = pa.field("score", pa.float32())
        if problem_type == "regression":
            return [score]
        fields = [pa.field("label", pa.string()), score]
        if problem_type == "multi_label":
            fields.append(pa.field("labels", pa.list_(pa.string())))
        if job.output.all_scores:
            fields.append(pa.field("scores", pa.list_(pa.float32())))
        return fields

    def lines(self, output: pa.Array) -> NDArray[np.int64]:
        return np.ones(len(output), np.int64)

    def faults(self, output: pa.Array, job: Job) -> dict[int, str]:
        del job
        executed = np.flatnonzero(output.is_valid())
        finite = np.isfinite(logits_of(output.drop_null())).all(axis=1)
        return dict.fromkeys(executed[~finite].tolist(), "nan_logits")

    def columns(self, output: pa.Array, job: Job, labels: tuple[str, ...], problem_type: str) -> list[pa.Array]:
        logits = logits_of(output)
        if problem_type == "regression":
            return [pa.array(logits[:, 0], pa.float32())]
        scores = _sigmoid(logits) if problem_type == "multi_label" else _softmax(logits)
        best = scores.argmax(axis=1)
        columns = [
            pa.array([labels[index] for index in best], pa.string()),
            pa.array(scores[np.arange(len(scores)), best], pa.float32()),
        ]
        if problem_type == "multi_label":
            given = [[labels[index] for index in np.flatnonzero(row >= MULTI_LABEL_THRESHOLD)] for row in scores]
            columns.append(pa.array(given, pa.list_(pa.string())))
        if job.output.all_scores:
            columns.append(pa.array(list(scores), pa.list_(pa.float32())))
        return columns


def logits_type(labels: int) -> pa.DataType:
    """How a row's logits lie in a shard's result."""
    return pa.list_(pa.float32(), labels)


def logits_array(logits: NDArray[np.float32]) -> pa.Array:
    """Logits (rows, labels) as that type."""
    return pa.FixedSizeListArray.from_arrays(pa.array(logits.ravel(), pa.float32()), logits.shape[1])


def logits_of(output: pa.Array) -> NDArray[np.float32]:
    """The logits (rows, labels) of an array without nulls."""
    return np.asarray(output.flatten(), np.float32).reshape(len(output), output.type.list_size)


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """In float64 and row by row, so that a row's bytes depend on its own logits only."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    scores: NDArray[np.float32] = (shifted / shifted.sum(axis=1, keepdims=True)).astype(np.float32)
    return scores


def _sigmoid(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.exp(-np.logaddexp(0, -logits.astype(np.float64))).astype(np.float32)  # no overflow at either end


task = Classify()
