"""What a text must look like: a JSON schema or a regular expression, as a mask of the tokens allowed next."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from compile.errors import ModelError


class Matcher(Protocol):
    """Follows one text."""

    def allowed(self) -> NDArray[np.bool_]:
        """Tokens that may come next, bool (vocab,), ending tokens where the text may end; none when it is stuck."""

    def take(self, token: int) -> None:
        """The token that was chosen."""


class Constraint(Protocol):
    """One rule for all texts of a job."""

    def matcher(self) -> Matcher:
        """A fresh one for a new text."""


class GrammarTokens:
    """A model's tokens as llguidance knows them, for any number of grammars."""

    def __init__(self, model_dir: Path, vocab_size: int, ends: Sequence[int]) -> None:
        """`ends` are the tokens that may end a text. Raises ModelError, ValueError."""
        import llguidance

        path = model_dir / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{model_dir} has no tokenizer.json, which a constraint needs")
        if not ends:
            raise ValueError("a constraint needs a token that ends a text; the model has no eos_token_id")
        self.vocab_size = vocab_size
        self.tokenizer = llguidance.LLTokenizer(path.read_text(), n_vocab=vocab_size, eos_token=list(ends))


class GrammarConstraint:
    """A grammar over a model's tokens. Compiled once; a text that is cut by max_new_tokens may be a beginning only."""

    def __init__(self, tokens: GrammarTokens, grammar: str) -> None:
        """Raises ValueError that says what llguidance lacks."""
        import llguidance

        self._vocab_size = tokens.vocab_size
        # 0: its own warnings would go to standard error for every text.
        self._first = llguidance.LLMatcher(tokens.tokenizer, grammar, log_level=0)
        problem = self._first.get_error()
        if problem:
            raise ValueError(f"the constraint cannot be used: {problem.splitlines()[0]}")

    def matcher(self) -> Matcher:
        return _GrammarMatcher(self._first.deep_copy(), self._vocab_size)


class _GrammarMatcher:
    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._bits = np.zeros((1, -(-vocab_size // 32)), np.int32)
        self._vocab_size = vocab_size

    def allowed(self) -> NDArray[np.bool_]:
        from llguidance.numpy import fill_next_token_bitmask

        if self._matcher.is_error():
            return np.zeros(self._vocab_size, np.bool_)
        fill_next_token_bitmask(self._matcher, self._bits)
        bits = np.unpackbits(self._bits.view(np.uint8)[0], bitorder="little")
        return bits[: self._vocab_size].astype(np.bool_)

    def take(self, token: int) -> None:
        self._matcher.consume_token(token)


def json_schema_grammar(schema: Mapping[str, Any]) -> str:
    """A grammar of JSON texts of that schema, written compactly. Raises ValueError for what llguidance lacks."""
    import llguidance

    compact = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
    try:
        grammar: str = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=compact)
    except ValueError as error:
        raise ValueError(f"the JSON schema cannot be used: {error}") from None
    return grammar


def regex_grammar(pattern: str) -> str:
    """A grammar of texts that match a regular expression as a whole (Rust's syntax, without look-around)."""
    import llguidance

    grammar: str = llguidance.LLMatcher.grammar_from_regex(pattern)
    return grammar
