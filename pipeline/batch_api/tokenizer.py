"""Requests to token ids: chats through the model's template, texts as they are, token ids as they came."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pipeline.batch_api.asks import Asks
from pipeline.batch_api.fields import FieldError
from pipeline.chat_tokenizer import ChatTokenizer
from pipeline.rejects import Reject, reject
from pipeline.tokenizer import TokenizedText, Tokenizer

_NO_TOKENS = TokenizedText(np.empty(0, np.uint32), 0, 0)


class RequestTokenizer:
    """See pipeline.tokenizer.RowTokenizer; a row's text is what pipeline.batch_api.lines made of its line.

    Also where what needs the model is checked, so that nothing fails later: limits, token ids, formats, the target.
    """

    def __init__(
        self, asks: Asks, chats: ChatTokenizer | None, texts: Tokenizer, max_tokens: int, truncation: str
    ) -> None:
        """`chats` is None for a model without a chat template."""
        self._asks = asks
        self._chats = chats
        self._texts = texts
        self._max_tokens = max_tokens
        self._truncation = truncation

    def encode(self, texts: Sequence[tuple[str, str | None]]) -> list[TokenizedText | Reject]:
        requests = [json.loads(text) for text, _ in texts]
        found: list[TokenizedText | Reject] = [self._checked(request) for request in requests]
        self._fill(found, requests, "messages", self._chat_tokens)
        self._fill(found, requests, "prompt", self._texts.encode)
        self._fill(found, requests, "tokens", lambda given: [self._own(json.loads(tokens)) for tokens, _ in given])
        shown = [_shown(request) for request in requests]
        return [
            dataclasses.replace(one, payload=payload) if isinstance(one, Reject) else one
            for one, payload in zip(found, shown, strict=True)
        ]

    def _checked(self, request: dict[str, Any]) -> TokenizedText | Reject:
        try:
            self._asks.of(request)
            wrong = [token for token in request.get("tokens", ()) if token >= self._asks.vocab_size]
            if wrong:
                said = f"token {wrong[0]} is none of the model's {self._asks.vocab_size}"
                raise FieldError("bad_request", "body.prompt", said)
        except FieldError as error:
            return reject("tokenize", error.reason, str(error), "")
        return _NO_TOKENS

    def _fill(
        self,
        found: list[TokenizedText | Reject],
        requests: Sequence[dict[str, Any]],
        kind: str,
        encode: Callable[[list[tuple[str, str | None]]], Sequence[TokenizedText | Reject]],
    ) -> None:
        """Put the tokens of the good requests of one kind into their places."""
        places = [at for at, one in enumerate(requests) if kind in one and not isinstance(found[at], Reject)]
        values = [requests[at][kind] for at in places]
        given: list[tuple[str, str | None]] = [
            (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), None) for value in values
        ]
        for at, one in zip(places, encode(given), strict=True):
            found[at] = one

    def _chat_tokens(self, given: Sequence[tuple[str, str | None]]) -> Sequence[TokenizedText | Reject]:
        if self._chats is None:
            said = "body.messages: the model has no chat template; ask /v1/completions"
            return [reject("tokenize", "bad_messages", said, "")] * len(given)
        return self._chats.encode(given)

    def _own(self, tokens: list[int]) -> TokenizedText:
        """Token ids of the request itself, cut as the job says."""
        whole = np.array(tokens, np.uint32)
        excess = len(whole) - self._max_tokens
        if excess <= 0 or self._truncation == "reject":
            return TokenizedText(whole, 0, 0)
        kept = self._max_tokens
        first = {"head": kept, "tail": 0, "head_tail": kept - kept // 2}[self._truncation]
        return TokenizedText(np.delete(whole, slice(first, first + excess)), 0, excess)


def _shown(request: dict[str, Any]) -> str:
    """For a reject's payload: the request as it was understood."""
    return reject("tokenize", "bad_request", "", {key: value for key, value in request.items() if value}).payload
