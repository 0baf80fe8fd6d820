"""How rows of tokens become one padded batch of a static shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compile.shapes import Shape
from compile.targets import EncoderBatch


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One tokenised row, special tokens included, not padded."""

    token_ids: NDArray[np.int64]
    """Shape (tokens,)."""
    segment_b: int = 0
    """How many of the last tokens belong to the second text of a pair (token type 1)."""

    def __len__(self) -> int:
        return len(self.token_ids)


def batch_rows(rows: Sequence[TokenRow], shape: Shape, pad_token_id: int) -> EncoderBatch:
    """Right-pad up to `shape.batch` rows; missing rows become padding rows. Raises ValueError for what does not fit."""
    flat = np.concatenate([row.token_ids for row in rows]) if rows else np.empty(0, np.int64)
    lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
    segment_b = np.fromiter((row.segment_b for row in rows), np.int64, len(rows))
    return batch_flat(flat, lengths, segment_b, shape, pad_token_id)


def batch_flat(
    flat: NDArray[np.int64],
    lengths: NDArray[np.int64],
    segment_b: NDArray[np.int64],
    shape: Shape,
    pad_token_id: int,
) -> EncoderBatch:
    """`batch_rows` for rows that lie end to end in `flat`: tokens (sum of lengths,), lengths and segments (rows,).

    A padding row attends to its first position, because a softmax over nothing is NaN in some runtimes.
    """
    rows = len(lengths)
    if rows > shape.batch:
        raise ValueError(f"{rows} rows do not fit a batch of {shape}")
    if rows and (int(lengths.max()) > shape.length or int(lengths.min()) < 1):
        raise ValueError(f"rows of {int(lengths.min())} to {int(lengths.max())} tokens do not fit {shape}")
    columns = np.arange(shape.length)
    real = np.zeros((shape.batch, shape.length), np.bool_)
    real[:rows] = columns < lengths[:, None]
    input_ids = np.full((shape.batch, shape.length), pad_token_id, np.int64)
    input_ids[real] = flat
    token_type_ids = np.zeros((shape.batch, shape.length), np.int64)
    if segment_b.any():
        token_type_ids[:rows] = real[:rows] & (columns >= (lengths - segment_b)[:, None])
    attention_mask = real.astype(np.int64)
    attention_mask[rows:, 0] = 1
    return EncoderBatch(input_ids, attention_mask, token_type_ids)
