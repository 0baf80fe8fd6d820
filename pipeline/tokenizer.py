"""Text to token ids with the job's truncation policy, through the Rust `tokenizers` library on all cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from tokenizers import Tokenizer as RustTokenizer

from pipeline.errors import JobError


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """One row's tokens, special tokens included."""

    token_ids: NDArray[np.uint32]
    """Shape (tokens,)."""
    segment_b: int
    """How many of the last tokens belong to the second text of a pair."""
    truncated_tokens: int
    """How many tokens the policy cut."""


class Tokenizer:
    """`truncation` is `reject` (rows come back whole, the caller rejects), `head` or `tail` (which end is kept)."""

    def __init__(self, model_dir: Path, max_tokens: int, truncation: str) -> None:
        self._whole = _read(model_dir)
        self._cutting: RustTokenizer | None = None
        self._max_tokens = max_tokens
        if truncation != "reject":
            self._cutting = _read(model_dir)
            # longest_first is what transformers' truncation=True does with a pair.
            direction = "right" if truncation == "head" else "left"
            self._cutting.enable_truncation(max_tokens, strategy="longest_first", direction=direction)

    def encode(self, texts: Sequence[tuple[str, str | None]]) -> list[TokenizedText]:
        """Tokenise texts or pairs, in order."""
        inputs = [first if second is None else (first, second) for first, second in texts]
        encodings = self._whole.encode_batch_fast(inputs)
        lengths = [len(encoding) for encoding in encodings]
        if self._cutting is not None:
            long = [index for index, length in enumerate(lengths) if length > self._max_tokens]
            cut = self._cutting.encode_batch_fast([inputs[index] for index in long])
            for index, encoding in zip(long, cut, strict=True):
                encodings[index] = encoding
        return [_result(encoding, length) for encoding, length in zip(encodings, lengths, strict=True)]


def _result(encoding: Encoding, whole_length: int) -> TokenizedText:
    token_ids = np.array(encoding.ids, np.uint32)
    return TokenizedText(token_ids, int(sum(encoding.type_ids)), whole_length - len(token_ids))


def _read(model_dir: Path) -> RustTokenizer:
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
