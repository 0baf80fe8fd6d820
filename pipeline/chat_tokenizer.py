"""Chats to token ids: each row becomes messages, the model's chat template makes one text of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Encoding

from pipeline.chat_template import ChatTemplate, Message, TemplateRefusalError
from pipeline.rejects import Reject, reject
from pipeline.tokenizer import TokenizedText, read_tokenizer

_MARK = "\ue000\ue001lengthwise\ue001\ue000"
"""Stands for a message's content, to find out where a template puts it; private-use characters, so in no real text."""


class ChatTokenizer:
    """As pipeline.tokenizer.Tokenizer, for prompts. Truncation cuts the last message's content, never the template.

    A row's text is one user message; with `chats` it is the JSON of a list of messages. The template writes all
    special tokens, so the tokenizer adds none.
    """

    def __init__(
        self,
        model_dir: Path,
        max_tokens: int,
        truncation: str,
        template: ChatTemplate,
        *,
        system: str | None = None,
        chats: bool = False,
    ) -> None:
        self._tokenizer = read_tokenizer(model_dir)
        self._max_tokens = max_tokens
        self._truncation = truncation
        self._template = template
        self._system = system
        self._chats = chats

    def encode(self, texts: Sequence[tuple[str, str | None]]) -> list[TokenizedText | Reject]:
        """Tokenise rows, in order; one that the template refuses is a reject."""
        found: list[TokenizedText | Reject] = []
        rendered: list[tuple[int, list[Message], str]] = []
        for index, (text, _) in enumerate(texts):
            messages = self._messages(text)
            try:
                rendered.append((index, messages, self._template.render(messages)))
                found.append(TokenizedText(np.empty(0, np.uint32), 0, 0))
            except TemplateRefusalError as error:
                found.append(reject("tokenize", "bad_messages", str(error), text))
        prompts = [prompt for _, _, prompt in rendered]
        encodings = self._tokenizer.encode_batch_fast(prompts, add_special_tokens=False)
        for (index, messages, prompt), encoding in zip(rendered, encodings, strict=True):
            found[index] = self._fitting(messages, prompt, encoding)
        return found

    def _messages(self, text: str) -> list[Message]:
        messages: list[Message] = json.loads(text) if self._chats else [{"role": "user", "content": text}]
        if self._system is not None and messages[0]["role"] != "system":
            return [{"role": "system", "content": self._system}, *messages]
        return messages

    def _fitting(self, messages: list[Message], prompt: str, encoding: Encoding) -> TokenizedText:
        """The prompt's tokens, cut as the job says; whole where that is not enough, and then too long."""
        token_ids = np.array(encoding.ids, np.uint32)
        excess = len(token_ids) - self._max_tokens
        if excess <= 0 or self._truncation == "reject":
            return TokenizedText(token_ids, 0, 0)
        places = self._content_places(messages, prompt)
        kept = len(places) - excess
        if kept < 1:
            return TokenizedText(token_ids, 0, 0)
        first = {"head": kept, "tail": 0, "head_tail": kept - kept // 2}[self._truncation]
        return TokenizedText(np.delete(token_ids, places[first : first + excess]), 0, excess)

    def _content_places(self, messages: list[Message], prompt: str) -> list[int]:
        """Which tokens are of the last message's content; none where the template does more than put it somewhere."""
        marked = self._template.render([*messages[:-1], {**messages[-1], "content": _MARK}])
        before, mark, after = marked.partition(_MARK)
        stop = len(prompt) - len(after)
        if not mark or not prompt.startswith(before) or not prompt.endswith(after) or stop < len(before):
            return []
        offsets = self._tokenizer.encode(prompt, add_special_tokens=False).offsets
        return [place for place, (start, end) in enumerate(offsets) if len(before) <= start < end <= stop]
