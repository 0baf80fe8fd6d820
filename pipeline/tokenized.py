"""The stored form of a tokenised split: token ids sorted by length, found by arithmetic over the counts per length."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from compile.batches import TokenRow
from pipeline.errors import JobError
from pipeline.layout import token_object
from pipeline.objects import Objects

ROW = np.dtype([("position", "<u4"), ("truncated", "<u4"), ("segment_b", "<u4")])
"""Per row: its place among the split's accepted rows in input order, tokens cut, tokens of the second text."""


Value = TypeVar("Value")
_NUMBERS = ("lengths", "counts", "piece_rows")


@dataclass(frozen=True, slots=True)
class SplitCounts:
    """What planning needs to know of a tokenised split; small, whatever the number of rows."""

    split: int
    lengths: Sequence[int]
    """Token lengths that occur, ascending."""
    counts: Sequence[int]
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
    piece_rows: Sequence[int]
    """Rows (or lines) that each piece of the split holds, which gives the next piece of the object its offset."""
    samples: int = 0
    """Output rows that the accepted rows ask for."""

    @property
    def accepted(self) -> int:
        return sum(self.counts)

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {name: list(values[name]) for name in _NUMBERS}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SplitCounts:
        # Planning holds those of all splits: as arrays they take a fraction of what numbers do.
        return cls(**{**data, **{name: array("q", data[name]) for name in _NUMBERS}})


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """Rows [start, stop) of a split's sorted order, end to end."""

    flat: NDArray[np.int64]
    """Token ids, shape (sum of lengths,)."""
    lengths: NDArray[np.int64]
    """Shape (rows,)."""
    rows: NDArray[np.void]
    """Records of dtype ROW, shape (rows,)."""
    splits: NDArray[np.int64]
    """Which split each row is of, shape (rows,)."""

    @classmethod
    def joined(cls, blocks: Sequence[TokenBlock]) -> TokenBlock:
        """Blocks end to end; at least one."""
        return cls(*(np.concatenate([getattr(block, name) for block in blocks]) for name in cls.__slots__))

    def __len__(self) -> int:
        return len(self.lengths)

    def cut(self, size: int) -> Iterator[TokenBlock]:
        """Blocks of `size` rows, the last one with what is left."""
        ends = np.concatenate([[0], np.cumsum(self.lengths)])
        for start in range(0, len(self), size):
            rows = slice(start, min(start + size, len(self)))
            flat = self.flat[ends[rows.start] : ends[rows.stop]]
            yield TokenBlock(flat, self.lengths[rows], self.rows[rows], self.splits[rows])

    def part(self, start: int, stop: int) -> TokenBlock:
        """Rows [start, stop) of this block."""
        ends = np.concatenate([[0], np.cumsum(self.lengths)])
        rows = slice(start, stop)
        return TokenBlock(self.flat[ends[start] : ends[stop]], self.lengths[rows], self.rows[rows], self.splits[rows])

    def spread(self, count: int) -> list[tuple[TokenRow, int]]:
        """Up to `count` rows, evenly over the block's (ascending) lengths, each with its position in the split."""
        ends = np.cumsum(self.lengths)
        found = []
        for index in np.unique(np.linspace(0, len(ends) - 1, count).astype(int)):
            ids = self.flat[ends[index] - self.lengths[index] : ends[index]]
            row = TokenRow(ids, int(self.rows["segment_b"][index]))
            found.append((row, int(self.rows["position"][index])))
        return found


def stored_dtype(vocab_size: int) -> str:
    """How token ids of that vocabulary are stored: `<u2` or `<u4`."""
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


def flat_tokens(rows: Sequence[NDArray[np.uint32]], vocab_size: int) -> NDArray[Any]:
    """Token ids of several rows end to end, as they are stored. Raises JobError for one outside the vocabulary."""
    flat = np.concatenate([np.empty(0, np.uint32), *rows])
    if len(flat) and int(flat.max()) >= vocab_size:
        raise JobError(
            f"the tokenizer gave token id {int(flat.max())} but the model has {vocab_size} embeddings: the tokenizer "
            "and the weights do not belong together"
        )
    return flat.astype(stored_dtype(vocab_size))


def encode_split(flat: NDArray[Any], lengths: NDArray[np.int64], rows: NDArray[np.void]) -> tuple[bytes, bytes]:
    """Sort by length (ties in input order); returns the bytes of tokens.bin and rows.bin.

    `flat` are the tokens of all rows end to end, `lengths` and `rows` have one entry per row.
    """
    order = np.argsort(lengths, kind="stable")
    starts = (np.cumsum(lengths) - lengths)[order]
    occurring, counts = np.unique(lengths, return_counts=True)
    # One length after the other: an index of all tokens at once would take eight bytes for each.
    groups = zip(np.split(starts, np.cumsum(counts)[:-1]), occurring, strict=True) if len(counts) else []
    tokens = b"".join(flat[own[:, None] + np.arange(length)].tobytes() for own, length in groups)
    return tokens, rows[order].tobytes()


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
    splits = np.full(len(wanted), counts.split, np.int64)
    tokens = np.frombuffer(flat, counts.token_dtype).astype(np.int64)
    return TokenBlock(tokens, wanted, np.frombuffer(rows, ROW), splits)


def per_row(block: TokenBlock, known: dict[int, list[Value]], read: Callable[[int], list[Value]]) -> list[Value]:
    """The value that each row of a block has in its split; `read` gives those of a split, in input order.

    `known` keeps what was read: shards follow the splits, so what the last block needed is all worth keeping.
    """
    splits = block.splits.tolist()
    wanted = {split: known.get(split) or read(split) for split in dict.fromkeys(splits)}
    known.clear()
    known.update(wanted)
    positions = block.rows["position"].tolist()
    return [wanted[split][position] for split, position in zip(splits, positions, strict=True)]


def load_counts(objects: Objects, tokens_uri: str, split: int) -> SplitCounts:
    """Raises FileNotFoundError while the split is not tokenised."""
    return SplitCounts.from_json(json.loads(objects.get(token_object(tokens_uri, split, "meta.json"))))
