"""One line of a batch file: {custom_id, method, url, body} as a row for the tokenizer, or why it is none. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from pipeline.batch_api.fields import CHAT, PROMPT_FIELDS, FieldError, asked_of
from pipeline.job import Input
from pipeline.rejects import Accepted, Reject, kept_values, reject

_MESSAGE_KEYS = {"role", "content", "name"}
"""What a chat template is given of a message."""


def check_line(values: Mapping[str, Any], spec: Input) -> Accepted | Reject:
    """As pipeline.rejects.check_row. `text` is JSON of the prompt and of all that the body asks for.

    A reject carries the custom_id wherever the line has one.
    """
    custom_id = values.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        return reject("read", "missing_id", "custom_id: is required, a text that is not empty", values)
    if not _encodable(custom_id):
        return reject("read", "lone_surrogate", "custom_id: half of a surrogate pair", values)
    try:
        return _accepted(custom_id, values, spec)
    except FieldError as error:
        return dataclasses.replace(reject("read", error.reason, str(error), values), row_id=custom_id)


def _accepted(custom_id: str, values: Mapping[str, Any], spec: Input) -> Accepted | Reject:
    _chosen(values, "method", ("POST",))
    url, body = _chosen(values, "url", tuple(PROMPT_FIELDS)), values.get("body")
    if not isinstance(body, Mapping):
        raise FieldError("bad_request", "body", "is required, an object")
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise FieldError("bad_request", "body.model", "must be a text")
    try:
        request: dict[str, Any] = {"url": url, "model": model, "asked": asked_of(body, url)}
        text = json.dumps({**_prompt(body, url), **request}, ensure_ascii=False)
    except RecursionError as error:
        raise FieldError("bad_request", "body", "is nested too deeply") from error
    if not _encodable(text):
        raise FieldError("lone_surrogate", "body", "a text in it holds half of a surrogate pair")
    kept = kept_values(values, spec)
    if isinstance(kept, Reject):
        return dataclasses.replace(kept, row_id=custom_id)
    as_json, samples = json.dumps(request, ensure_ascii=False), request["asked"].get("n")
    return Accepted(text, None, custom_id, kept, request=as_json, samples=samples)


def _chosen(values: Mapping[str, Any], name: str, known: tuple[str, ...]) -> str:
    """The field's value. Raises FieldError where it is none of `known`."""
    given = values.get(name)
    if not isinstance(given, str) or given not in known:
        said = "it is missing" if given is None else f"not {str(given)[:80]!r}"
        raise FieldError("bad_endpoint", name, f"must be {' or '.join(known)}; {said}")
    return given


def _prompt(body: Mapping[str, Any], url: str) -> dict[str, Any]:
    """{messages}, {prompt} or {tokens}. Raises FieldError."""
    field = PROMPT_FIELDS[url]
    given = body.get(field)
    if given is None:
        raise FieldError("bad_request", f"body.{field}", "is required")
    return {field: _messages(given)} if url == CHAT else _text_or_tokens(given)


def _messages(given: Any) -> list[dict[str, str]]:
    if not isinstance(given, list) or not given:
        raise FieldError("bad_messages", "body.messages", "must be a list of at least one message")
    found = []
    for number, message in enumerate(given):
        field = f"body.messages.{number}"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise FieldError("bad_messages", field, "must be an object with a role")
        more = {key for key, value in message.items() if key not in _MESSAGE_KEYS and value not in (None, [], "")}
        if more:
            raise FieldError("unsupported_field", field, f"{', '.join(sorted(more))} cannot be used here")
        one = {"role": message["role"], "content": _content(message.get("content"), field)}
        name = message.get("name")
        if name is not None and not isinstance(name, str):
            raise FieldError("bad_messages", f"{field}.name", "must be a text")
        found.append({**one, "name": name} if name is not None else one)
    return found


def _content(given: Any, field: str) -> str:
    """A text, or parts of type text, which vLLM joins with line ends, too."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not given:
        raise FieldError("bad_messages", f"{field}.content", "must be a text, or a list of parts")
    texts = []
    for number, part in enumerate(given):
        if isinstance(part, Mapping) and part.get("type", "text") != "text":
            kind = str(part.get("type"))[:80]
            raise FieldError("unsupported_field", f"{field}.content.{number}", f"only type text, not {kind!r}")
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            raise FieldError("bad_messages", f"{field}.content.{number}", "must be {type: text, text: ...}")
        texts.append(part["text"])
    return "\n".join(texts)


def _text_or_tokens(given: Any) -> dict[str, Any]:
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):
        given = given[0]
    if isinstance(given, str):
        return {"prompt": given}
    if not isinstance(given, list):
        raise FieldError("bad_request", "body.prompt", "must be a text or a list of token ids")
    if any(isinstance(one, str | list) for one in given):
        raise FieldError("unsupported_field", "body.prompt", "one prompt per line; give each a line of its own")
    if not all(type(one) is int and 0 <= one < 1 << 32 for one in given):
        raise FieldError("bad_request", "body.prompt", "token ids must be whole numbers from 0")
    return {"tokens": given}


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
