"""A block read by ranges equals the slice of everything, for any rows and both widths of token ids."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.errors import JobError
from pipeline.layout import token_object
from pipeline.objects import Objects
from pipeline.tokenized import ROW, SplitCounts, encode_split, flat_tokens, load_counts, read_block, stored_dtype

SMALL, LARGE = 1 << 16, (1 << 16) + 1


def encode(tokens: list[NDArray[np.uint32]], rows: NDArray[np.void], vocab_size: int) -> tuple[bytes, bytes]:
    return encode_split(flat_tokens(tokens, vocab_size), np.array([len(item) for item in tokens], np.int64), rows)


def store(folder: Path, tokens: list[NDArray[np.uint32]], vocab_size: int) -> tuple[Objects, str, SplitCounts]:
    """One split of these rows, whose records tell their position in the input."""
    records = np.array([(index, index * 7, index * 3) for index in range(len(tokens))], ROW)
    flat, rows = encode(tokens, records, vocab_size)
    dtype = stored_dtype(vocab_size)
    lengths, counts = np.unique([len(item) for item in tokens], return_counts=True)
    summary = SplitCounts(
        0, tuple(map(int, lengths)), tuple(map(int, counts)), dtype, len(tokens), 0, {}, 0, 0, (len(tokens),)
    )
    objects, uri = Objects(), str(folder / "tokens")
    objects.put(token_object(uri, 0, "tokens.bin"), flat)
    objects.put(token_object(uri, 0, "rows.bin"), rows)
    return objects, uri, summary


ROWS = st.lists(st.lists(st.integers(0, SMALL - 1), min_size=1, max_size=6), max_size=15)


@given(ROWS, st.sampled_from([SMALL, LARGE]))
def test_any_block_is_the_slice_of_everything(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[int]], vocab_size: int
) -> None:
    tokens = [np.array(row, np.uint32) for row in rows]
    objects, uri, counts = store(tmp_path_factory.mktemp("tokens"), tokens, vocab_size)
    assert counts.token_dtype == ("<u2" if vocab_size == SMALL else "<u4")
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))  # sorted() is stable: ties in input order
    for start in range(len(rows) + 1):
        for stop in range(start, len(rows) + 1):
            block = read_block(objects, uri, counts, start, stop)
            wanted = order[start:stop]
            assert block.flat.tolist() == [token for index in wanted for token in rows[index]]
            assert block.flat.dtype == np.int64
            assert block.lengths.tolist() == [len(rows[index]) for index in wanted]
            assert block.rows.tolist() == [(index, index * 7, index * 3) for index in wanted]


def test_the_bytes_are_little_endian_and_as_wide_as_the_vocabulary_asks() -> None:
    tokens = [np.array([258, 1], np.uint32), np.array([65535], np.uint32)]
    rows = np.zeros(2, ROW)
    assert encode(tokens, rows, SMALL)[0] == b"\xff\xff\x02\x01\x01\x00"
    assert encode(tokens, rows, LARGE)[0] == b"\xff\xff\0\0\x02\x01\0\0\x01\0\0\0"
    assert encode([], np.zeros(0, ROW), SMALL) == (b"", b"")


def test_a_token_outside_the_vocabulary_is_named() -> None:
    with pytest.raises(JobError, match="token id 30522 but the model has 30522 embeddings"):
        flat_tokens([np.array([1, 30522], np.uint32)], 30522)


def test_counts_survive_json(tmp_path: Path) -> None:
    counts = SplitCounts(3, (2, 9), (4, 1), "<u2", 7, 2, {"null_text": 2}, 1, 5, (4, 3))
    assert counts.accepted == 5
    read = SplitCounts.from_json(json.loads(json.dumps(counts.to_json())))
    assert read.to_json() == counts.to_json()
    assert SplitCounts.from_json(read.to_json()) == read
    with pytest.raises(FileNotFoundError):
        load_counts(Objects(), str(tmp_path), 3)
