"""Which real rows an artifact is proven on: spread over the lengths that its shape takes, and one that fills it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compile.batches import TokenRow
from compile.errors import CompileError
from compile.model import ModelInfo
from compile.shapes import Shape

ROWS_PER_SHAPE = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """A row to compare, real or joined from real ones."""

    row: TokenRow
    made: bool
    """True when no real row was long enough and this one was joined from several."""


def choose_samples(
    rows: Sequence[TokenRow], shape: Shape, max_positions: int, count: int = ROWS_PER_SHAPE
) -> list[Sample]:
    """Up to `count` rows that fit: the shortest, the longest, and even steps between; one fills the shape.

    Raises CompileError when there is no row at all.
    """
    if not rows:
        raise CompileError(f"{shape} cannot be proven without rows; give real rows of the job")
    fitting = sorted((row for row in rows if len(row) <= shape.length), key=_order)
    taken = min(len(fitting), count - 1)
    # The upper half of the steps is taken from the longest rows, which is what this shape will mostly see.
    steps = np.rint(np.linspace(0, 1, taken) ** 0.5 * (len(fitting) - 1)).astype(int)
    samples = [Sample(fitting[index], made=False) for index in np.unique(steps)]
    if not fitting or len(fitting[-1]) < shape.length:
        samples.append(Sample(_join(rows, min(shape.length, max_positions)), made=True))
    return samples


def check_rows(rows: Sequence[TokenRow], model: ModelInfo) -> None:
    """Raises CompileError when rows cannot be this model's: ids outside its vocabulary, or its pad id within a row."""
    if not rows:
        return
    flat = np.concatenate([row.token_ids for row in rows])
    if int(flat.min()) < 0 or int(flat.max()) >= model.vocab_size:
        raise CompileError(
            f"the rows have token ids {int(flat.min())} to {int(flat.max())}, outside the model's {model.vocab_size}: "
            "were they made by another tokenizer?"
        )
    if (flat == model.pad_token_id).any():
        raise CompileError(
            f"the rows contain the pad id {model.pad_token_id} as a token: the pad id is wrong, or they are padded"
        )


def _order(row: TokenRow) -> tuple[int, bytes]:
    return len(row), row.token_ids.tobytes()


def _join(rows: Sequence[TokenRow], length: int) -> TokenRow:
    """A row of exactly `length` tokens: the longest rows end to end, cut, with the first row's last token kept last."""
    ordered = sorted(rows, key=_order, reverse=True)
    tokens = np.concatenate([row.token_ids for row in ordered])
    joined = np.resize(tokens, length).astype(np.int64)
    if length > 1:
        joined[-1] = ordered[0].token_ids[-1]
    return TokenRow(joined)
