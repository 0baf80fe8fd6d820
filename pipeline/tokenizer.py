"""Text to token ids with the job's truncation policy, through the Rust `tokenizers` library on all cores."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from tokenizers import Tokenizer as RustTokenizer

from pipeline.errors import JobError
from pipeline.rejects import Reject


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """One row's tokens, special tokens included."""

    token_ids: NDArray[np.uint32]
    """Shape (tokens,)."""
    segment_b: int
    """How many of the last tokens belong to the second text of a pair."""
    truncated_tokens: int
    """How many tokens the policy cut."""


class RowTokenizer(Protocol):
    """What the tokenize step asks of a task's tokenizer."""

    def encode(self, texts: Sequence[tuple[str, str | None]]) -> Sequence[TokenizedText | Reject]:
        """Tokenise rows given as text and second text, in order; a row that cannot be a prompt is a reject."""


_SIDES = {"head": ("right",), "tail": ("left",), "head_tail": ("right", "left")}
"""Truncation policy -> the sides at which texts are cut, as the library names them."""


class Tokenizer:
    """`truncation` is `reject` (rows come back whole, the caller rejects), or the end of the text that is kept.

    `head` keeps the beginning, `tail` the end, `head_tail` both: of a text's n tokens the first n - n // 2 and the last
    n // 2. The two texts of a pair are cut by the same policy each, the longer one first.
    """

    def __init__(self, model_dir: Path, max_tokens: int, truncation: str) -> None:
        self._whole = read_tokenizer(model_dir)
        self._cutting: list[RustTokenizer] = []
        self._max_tokens = max_tokens
        for side in _SIDES.get(truncation, ()):
            cutting = read_tokenizer(model_dir)
            # longest_first is what transformers' truncation=True does with a pair.
            cutting.enable_truncation(max_tokens, strategy="longest_first", direction=side)
            self._cutting.append(cutting)

    def encode(self, texts: Sequence[tuple[str, str | None]]) -> list[TokenizedText]:
        """Tokenise texts or pairs, in order."""
        inputs = [first if second is None else (first, second) for first, second in texts]
        found = [_result(encoding, len(encoding)) for encoding in self._whole.encode_batch_fast(inputs)]
        long = [index for index, text in enumerate(found) if len(text.token_ids) > self._max_tokens]
        if self._cutting and long:
            cut = [tokenizer.encode_batch_fast([inputs[index] for index in long]) for tokenizer in self._cutting]
            for index, encodings in zip(long, zip(*cut, strict=True), strict=True):
                text = _result(encodings[0], len(found[index].token_ids))
                found[index] = text if len(encodings) == 1 else _both_ends(text, *encodings)
        return found


def _both_ends(text: TokenizedText, head: Encoding, tail: Encoding) -> TokenizedText:
    """`text`, which was cut like `head`, with the second half of each sequence from the cut that kept the end.

    Both cuts leave the same number of tokens of each sequence and the same special tokens in the same places.
    """
    sequences = np.array([-1 if number is None else number for number in head.sequence_ids])
    if head.sequence_ids != tail.sequence_ids:
        raise JobError("truncation: the tokenizer cuts beginnings and ends unlike; choose head or tail")
    token_ids = text.token_ids.copy()
    for number in (0, 1):
        places = np.flatnonzero(sequences == number)
        second = places[len(places) - len(places) // 2 :]
        token_ids[second] = np.array(tail.ids, np.uint32)[second]
    return dataclasses.replace(text, token_ids=token_ids)


def _result(encoding: Encoding, whole_length: int) -> TokenizedText:
    token_ids = np.array(encoding.ids, np.uint32)
    return TokenizedText(token_ids, int(sum(encoding.type_ids)), whole_length - len(token_ids))


def read_tokenizer(model_dir: Path) -> RustTokenizer:
    """The folder's tokenizer, which pads and cuts nothing. Raises JobError."""
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise JobError(
            f"{model_dir}: no tokenizer.json; save one with "
            "AutoTokenizer.from_pretrained(..., use_fast=True).save_pretrained(...) and upload it beside the weights"
        )
    try:
        tokenizer = RustTokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception for any malformed file
        raise JobError(f"{path}: not a readable tokenizer: {error}") from error
    # Many published files carry fixed padding and truncation, which would cut rows without a word.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
