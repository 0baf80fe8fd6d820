"""Whether a compiled graph is as often right as the fp32 model, on rows whose label is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compile.batches import TokenRow, batch_rows
from compile.model import ModelInfo
from compile.reference import Reference
from compile.targets import Executable

MAX_ROWS = 256


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """A row of a single-label job with its true label, an index into the model's labels."""

    row: TokenRow
    label: int


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How many rows of known label each of the two got right."""

    rows: int
    correct: int
    reference_correct: int

    @property
    def drop(self) -> float:
        """Share of rows that fp32 gets right and this loses, net of those it gains; below zero when it gains."""
        return (self.reference_correct - self.correct) / self.rows


def measure_accuracy(
    executable: Executable, rows: Sequence[LabelledRow], reference: Reference, model: ModelInfo
) -> Accuracy | None:
    """Accuracy on up to MAX_ROWS of the rows that fit the shape, in even steps; None when none fits."""
    shape = executable.shape
    fitting = [each for each in rows if len(each.row) <= shape.length]
    if not fitting:
        return None
    steps = np.unique(np.linspace(0, len(fitting) - 1, min(len(fitting), MAX_ROWS)).astype(int))
    chosen = [fitting[step] for step in steps]
    correct = 0
    for start in range(0, len(chosen), shape.batch):
        group = chosen[start : start + shape.batch]
        logits = executable.run(batch_rows([each.row for each in group], shape, model.pad_token_id))
        correct += sum(int(line.argmax()) == each.label for line, each in zip(logits, group, strict=False))
    right = sum(int(reference.logits(each.row).argmax()) == each.label for each in chosen)
    return Accuracy(rows=len(chosen), correct=correct, reference_correct=right)


def judge_accuracy(found: Accuracy | None, max_drop: float) -> tuple[str, ...]:
    """Why the accuracy does not pass, in a sentence; empty when it does or when there was nothing to measure."""
    if found is None or found.drop <= max_drop:
        return ()
    return (
        f"accuracy on {found.rows} labelled rows falls from {found.reference_correct / found.rows:.3f} to "
        f"{found.correct / found.rows:.3f}, by more than {max_drop:.3g}",
    )
