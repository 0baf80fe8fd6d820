"""Whether a compiled graph computes what the fp32 PyTorch model computes: a comparison of logits and its record."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compile.accuracy import Accuracy
from compile.generation.record import GenerationParity


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far logits may be from the reference. Distances are relative to its largest absolute logit, at least 1."""

    max_abs_logit: float
    """The worst single logit."""
    mean_abs_logit: float
    """The mean over all logits."""
    max_label_flips: float = 0.0
    """Share of rows whose label may differ, among rows whose label is clear (see CLEAR_MARGIN)."""
    max_accuracy_drop: float = 0.01
    """How much accuracy on labelled rows may be lost, where the job has labels."""


CLEAR_MARGIN = 0.01
"""A label is clear when the reference's scores are at least this far from a tie; nearer ones may fall either way."""

TOLERANCES = {
    "fp32": Tolerance(max_abs_logit=1e-3, mean_abs_logit=1e-4),
    "bf16": Tolerance(max_abs_logit=0.1, mean_abs_logit=0.025, max_label_flips=0.05),
    "int8": Tolerance(max_abs_logit=0.25, mean_abs_logit=0.05, max_label_flips=0.05),
}
"""Defaults by precision. fp32 kernels differ in the order of sums only; bf16 keeps 8 bits of each factor."""


@dataclass(frozen=True, slots=True)
class ParityRecord:
    """What was compared and what came of it. An artifact without a passing one cannot be loaded."""

    passed: bool
    reasons: tuple[str, ...]
    """Why it did not pass; empty when it did."""
    rows: int
    """Rows compared; a row is counted once per batch that it was part of."""
    max_abs_logit: float
    """Largest |logit - reference| over finite values."""
    mean_abs_logit: float
    label_flips: int
    """Rows with a clear label that differs."""
    nan_count: int
    """Logits that are NaN or infinite."""
    moved_rows: int
    """Rows whose bytes differed by position in the batch or by neighbours."""
    lengths: tuple[int, ...]
    """Token lengths covered, ascending."""
    made_rows: int
    """Rows that had to be joined from several real ones, because none was long enough."""
    tolerance: Tolerance
    versions: dict[str, str]
    """Toolchain versions that the comparison ran with."""
    accuracy: Accuracy | None = None
    """On labelled rows; None when the job has none."""
    generation: GenerationParity | None = None
    """Of decoders; a label is then the next token, and rows are prompts."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ParityRecord:
        values = dict(data)
        values["reasons"] = tuple(values["reasons"])
        values["lengths"] = tuple(values["lengths"])
        values["tolerance"] = Tolerance(**values["tolerance"])
        values["accuracy"] = Accuracy(**values["accuracy"]) if values.get("accuracy") else None
        values["generation"] = GenerationParity(**values["generation"]) if values.get("generation") else None
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Numbers from comparing logits with the reference's."""

    max_abs_logit: float
    mean_abs_logit: float
    label_flips: int
    clear_rows: int
    nan_count: int
    scale: float


def compare(reference: NDArray[np.float32], logits: NDArray[np.float32], problem_type: str) -> Comparison:
    """Compare two float32 (rows, labels) arrays. Raises ValueError for other shapes or for no rows.

    `problem_type` is `single_label`, `multi_label` or `regression`: it says what a label is.
    """
    if reference.shape != logits.shape or reference.ndim != 2 or not reference.size:
        raise ValueError(f"cannot compare logits of shape {logits.shape} with a reference of {reference.shape}")
    finite = np.isfinite(logits) & np.isfinite(reference)
    gaps = np.abs(logits.astype(np.float64) - reference)[finite]
    labels, clear = labels_of(reference, problem_type)
    other, _ = labels_of(logits, problem_type)
    clear &= finite.all(axis=1)
    flips = (labels != other).any(axis=1) & clear
    known = np.abs(reference[np.isfinite(reference)])
    return Comparison(
        max_abs_logit=float(gaps.max(initial=0.0)),
        mean_abs_logit=float(gaps.mean()) if gaps.size else 0.0,
        label_flips=int(flips.sum()),
        clear_rows=int(clear.sum()),
        nan_count=int((~finite).sum()),
        scale=max(1.0, float(known.max(initial=0.0))),
    )


def judge(found: Comparison, tolerance: Tolerance, moved_rows: int = 0) -> tuple[str, ...]:
    """Why the comparison does not pass, in sentences; empty when it passes."""
    reasons = []
    if found.nan_count:
        reasons.append(f"{found.nan_count} logits are NaN or infinite")
    for name, value, limit in (
        ("largest", found.max_abs_logit, tolerance.max_abs_logit * found.scale),
        ("mean", found.mean_abs_logit, tolerance.mean_abs_logit * found.scale),
    ):
        if not value <= limit:
            reasons.append(f"the {name} logit difference from fp32 is {value:.3g}, above {limit:.3g}")
    allowed = tolerance.max_label_flips * found.clear_rows
    if found.label_flips > allowed:
        reasons.append(f"{found.label_flips} of {found.clear_rows} clear labels differ, above {allowed:.3g}")
    if moved_rows:
        reasons.append(f"{moved_rows} rows change with their position in the batch or with their neighbours")
    return tuple(reasons)


def labels_of(
    logits: NDArray[np.float32], problem_type: str
) -> tuple[NDArray[np.bool_] | NDArray[np.int64], NDArray[np.bool_]]:
    """Labels (rows, 1) or (rows, labels), and whether each row's label is clear, (rows,)."""
    if problem_type == "regression":
        return np.zeros((len(logits), 1), np.bool_), np.zeros(len(logits), np.bool_)
    if problem_type == "multi_label" or logits.shape[1] == 1:
        scores = 1 / (1 + np.exp(-logits.astype(np.float64)))
        return scores >= 0.5, np.asarray((np.abs(scores - 0.5) >= CLEAR_MARGIN).all(axis=1))
    with np.errstate(invalid="ignore"):  # infinite logits give NaN scores, and such a row is clear of nothing
        shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        scores = np.sort(shifted / shifted.sum(axis=1, keepdims=True), axis=1)
    return logits.argmax(axis=1)[:, None], np.asarray(scores[:, -1] - scores[:, -2] >= CLEAR_MARGIN)
