"""The stored form of a tokenised split: token ids sorted by length, found by arithmetic over the counts per length."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compile.batches import TokenRow
from pipeline.errors import JobError
from pipeline.layout import token_object
from pipeline.objects import Objects

ROW = np.dtype([("position", "<u4"), ("truncated", "<u4"), ("segment_b", "<u4")])
"""Per row: its place among the split's accepted rows in input order, tokens cut, tokens of the second text."""


@dataclass(frozen=True, slots=True)
class SplitCounts:
    """What planning needs to know of a tokenised split; small, whatever the number of rows."""

    split: int
    lengths: tuple[int, ...]
    """Token lengths that occur, ascending."""
    counts: tuple[int, ...]
    """Rows of each of them."""
    token_dtype: str
    """Little-endian numpy name of the stored token ids, `<u2` or `<u4`."""
    rows: int
    """Rows read: accepted and rejected."""
    rejects: int
    reasons: dict[str, int]
    """Rejects per reason code."""
    truncated_rows: int
    truncated_tokens: int
    piece_rows: tuple[int, ...]
    """Rows (or lines) that each piece of the split holds, which gives the next piece of the object its offset."""

    @property
    def accepted(self) -> int:
        return sum(self.counts)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SplitCounts:
        values: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in data.items()}
        return cls(**values)


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """Rows [start, stop) of a split's sorted order, end to end."""

    flat: NDArray[np.int64]
    """Token ids, shape (sum of lengths,)."""
    lengths: NDArray[np.int64]
    """Shape (rows,)."""
    rows: NDArray[np.void]
    """Records of dtype ROW, shape (rows,)."""

    def spread(self, count: int) -> list[tuple[TokenRow, int]]:
        """Up to `count` rows, evenly over the block's (ascending) lengths, each with its position in the split."""
        ends = np.cumsum(self.lengths)
        found = []
        for index in np.unique(np.linspace(0, len(ends) - 1, count).astype(int)):
            ids = self.flat[ends[index] - self.lengths[index] : ends[index]]
            row = TokenRow(ids, int(self.rows["segment_b"][index]))
            found.append((row, int(self.rows["position"][index])))
        return found


def encode_split(
    tokens: Sequence[NDArray[np.uint32]], rows: NDArray[np.void], vocab_size: int
) -> tuple[bytes, bytes, str]:
    """Sort by length (ties in input order); returns the bytes of tokens.bin and rows.bin, and the token dtype.

    Raises JobError for a token id outside the model's vocabulary.
    """
    lengths = np.fromiter((len(item) for item in tokens), np.int64, len(tokens))
    order = np.argsort(lengths, kind="stable")
    dtype = "<u2" if vocab_size <= 1 << 16 else "<u4"
    flat = np.concatenate([tokens[index] for index in order]) if len(tokens) else np.empty(0, np.uint32)
    if len(flat) and int(flat.max()) >= vocab_size:
        raise JobError(
            f"the tokenizer gave token id {int(flat.max())} but the model has {vocab_size} embeddings: the tokenizer "
            "and the weights do not belong together"
        )
    return flat.astype(dtype).tobytes(), rows[order].tobytes(), dtype


def read_block(objects: Objects, tokens_uri: str, counts: SplitCounts, start: int, stop: int) -> TokenBlock:
    """Two ranged reads: because rows are sorted by length, counts alone give every offset."""
    lengths = np.repeat(np.array(counts.lengths, np.int64), np.array(counts.counts, np.int64))
    before = int(lengths[:start].sum())
    wanted = lengths[start:stop]
    size = np.dtype(counts.token_dtype).itemsize
    flat = objects.get(
        token_object(tokens_uri, counts.split, "tokens.bin"), before * size, (before + int(wanted.sum())) * size
    )
    rows = objects.get(token_object(tokens_uri, counts.split, "rows.bin"), start * ROW.itemsize, stop * ROW.itemsize)
    return TokenBlock(np.frombuffer(flat, counts.token_dtype).astype(np.int64), wanted, np.frombuffer(rows, ROW))


def load_counts(objects: Objects, tokens_uri: str, split: int) -> SplitCounts:
    """Raises FileNotFoundError while the split is not tokenised."""
    return SplitCounts.from_json(json.loads(objects.get(token_object(tokens_uri, split, "meta.json"))))
