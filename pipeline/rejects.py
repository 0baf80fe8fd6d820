"""Which rows cannot be predicted, and why: the closed list of reasons and the rules that find them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.column_paths import lookup
from pipeline.job import Input
from pipeline.values import cast_value, shown

REASONS = {
    "malformed_json": "the line is not JSON that can be read",
    "not_an_object": "the line is JSON, but not an object with columns",
    "malformed_csv": "a line of a record with more or fewer fields than the header, or with broken quoting",
    "invalid_utf8": "the bytes are not UTF-8",
    "lone_surrogate": "the text holds half of a surrogate pair, which no UTF-8 text can",
    "line_too_long": "the line is over 16 MiB, or the CSV record over 16 MiB or 100,000 lines",
    "missing_column": "the row lacks a column that the job names",
    "null_text": "a text column is null",
    "wrong_type": "a text column is not text",
    "bad_messages": "the messages are no list of {role, content}, or the model's chat template refuses them",
    "bad_request": "a field of a batch file's line is missing, of another type or out of range",
    "bad_endpoint": "a batch file's line is no POST to /v1/chat/completions or /v1/completions",
    "unsupported_field": "a batch file's line asks for what this version or target does not do",
    "unknown_model": "a batch file's line names another model than the job's served_model_names",
    "duplicate_id": "another line of the night's batch files has the same custom_id and comes first",
    "missing_id": "the id column is null, or neither text nor a whole number",
    "bad_kept_value": "a kept column's value does not fit its declared type",
    "too_long": "the row has more tokens than max_length and the job's truncation is reject",
    "no_tokens": "the text has no token at all",
    "nan_logits": "the model returned NaN or infinity for this row",
    "dead_end": "the job's generation settings left the model no token to go on with",
    "bad_json": "a text is no value of generate.json_schema: it was cut, or a number is too large for its column",
    "device_error": "the device failed on this row twice, alone in its batch, and worked without it",
    "worker_killed": "the process died, or lost its device, twice on this row alone, and lived without it",
}
"""Reason code -> what it means. A code is never renamed: readers query it."""

INFER_REASONS = ("nan_logits", "dead_end", "bad_json", "device_error", "worker_killed")
"""Reasons that only the infer step finds: such a row was tokenised and planned."""

DUPLICATE_MESSAGE = "custom_id: an earlier line of the night has the same; give each line one of its own"
MAX_PAYLOAD_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class Reject:
    """Why a row was not predicted."""

    stage: str
    """read, tokenize or infer."""
    reason: str
    message: str
    payload: str
    """The original row as far as it could be read, at most MAX_PAYLOAD_CHARS characters."""
    row_id: str | None = None
    """What the row calls itself, where an output names its rejects by it."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a valid row brings to the tokenizer and to the output."""

    text: str
    """Of a chat, the JSON of its messages."""
    pair: str | None
    row_id: str | None
    kept: tuple[Any, ...]
    """In the order of the job's `keep`."""
    label: str | None = None
    """The true label where the job names its column and the row has one."""
    request: str | None = None
    """Of a line of a batch file, what it asks for beside its prompt; JSON with url, model and asked."""
    samples: int | None = None
    """How many texts it asks for, where it says so."""


def reject(stage: str, reason: str, message: str, original: Any) -> Reject:
    """A reject with a bounded, printable payload."""
    assert reason in REASONS
    if isinstance(original, bytes):
        text = original[: MAX_PAYLOAD_CHARS * 4].decode("utf-8", errors="backslashreplace")
    elif isinstance(original, str):
        text = original[:MAX_PAYLOAD_CHARS]
    else:
        text = _json(original)
    safe = text[:MAX_PAYLOAD_CHARS].encode("utf-8", errors="backslashreplace").decode()
    return Reject(stage, reason, message, safe[:MAX_PAYLOAD_CHARS])


def duplicate(row: Accepted | Reject) -> Reject:
    """A row whose id an earlier row of the night has, whatever else is wrong with it."""
    payload = row.payload if isinstance(row, Reject) else row.text[:MAX_PAYLOAD_CHARS]
    return Reject("read", "duplicate_id", DUPLICATE_MESSAGE, payload, row.row_id)


def _json(original: Any) -> str:
    try:
        return json.dumps(original, default=str, ensure_ascii=False)
    except RecursionError:  # parsing it took less of the stack than writing it would
        return "nested too deeply to be shown"


def check_row(values: Mapping[str, Any], spec: Input) -> Accepted | Reject:
    """The one place that decides whether a row may be tokenised."""
    texts: list[str] = []
    for column in spec.text_columns():
        if column == spec.messages:
            text = _messages(values, column)
        else:
            text = _text(values, column, plain=spec.template is None or column == spec.pair)
        if isinstance(text, Reject):
            return text
        texts.append(text)
    pair = texts.pop() if spec.pair is not None else None
    row_id = _row_id(values, spec)
    if isinstance(row_id, Reject):
        return row_id
    kept = kept_values(values, spec)
    if isinstance(kept, Reject):
        return kept
    text = texts[0] if spec.template is None else spec.render(texts)
    return Accepted(text, pair, row_id, kept, _label(values, spec))


def kept_values(values: Mapping[str, Any], spec: Input) -> tuple[Any, ...] | Reject:
    """What the job keeps of a row, in the order of its `keep`."""
    kept = []
    for name, wanted in spec.keep.items():
        try:
            kept.append(cast_value(_optional(values, wanted.column), wanted.type))
        except (ValueError, TypeError) as error:
            return reject("read", "bad_kept_value", f"column {wanted.column!r}, kept as {name!r}: {error}", values)
    return tuple(kept)


def _required(values: Mapping[str, Any], column: str, reason: str) -> Any | Reject:
    """The column's value; `reason` is for a row in which something on the way to it holds no columns."""
    try:
        return lookup(values, column)
    except KeyError:
        return reject("read", "missing_column", f"no column {column!r}", values)
    except TypeError as error:
        return reject("read", reason, f"column {column!r}: {error}", values)


def _optional(values: Mapping[str, Any], column: str) -> Any:
    """None for a row without the column. Raises TypeError as `lookup` does."""
    try:
        return lookup(values, column)
    except KeyError:
        return None


def _text(values: Mapping[str, Any], column: str, plain: bool) -> str | Reject:
    """The column as text; a template also takes numbers and booleans."""
    value = _required(values, column, "wrong_type")
    if isinstance(value, Reject):
        return value
    if value is None:
        return reject("read", "null_text", f"column {column!r} is null", values)
    if not plain and isinstance(value, int | float):
        value = cast_value(value, "string")
    if not isinstance(value, str):
        return reject("read", "wrong_type", f"column {column!r} is {type(value).__name__}, not text", values)
    return _encodable(value, column, values)


def _messages(values: Mapping[str, Any], column: str) -> str | Reject:
    """A chat as JSON of role and content alone; Parquet and JSONL may hold it as a list or as JSON text."""
    value = _required(values, column, "wrong_type")
    if isinstance(value, Reject):
        return value
    if value is None:
        return reject("read", "null_text", f"column {column!r} is null", values)
    try:
        chat = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        return reject("read", "bad_messages", f"column {column!r} is not JSON: {error}", values)
    if not isinstance(chat, list) or not chat:
        return reject("read", "bad_messages", f"column {column!r} is {shown(chat)}, not a list of messages", values)
    for number, message in enumerate(chat):
        fields = [message.get(name) for name in ("role", "content")] if isinstance(message, Mapping) else [None]
        if not all(isinstance(field, str) for field in fields):
            said = f"column {column!r}, message {number}: {shown(message)} has no role and content that are texts"
            return reject("read", "bad_messages", said, values)
    plain = [{"role": message["role"], "content": message["content"]} for message in chat]
    return _encodable(json.dumps(plain, ensure_ascii=False), column, values)


def _encodable(value: str, column: str, values: Mapping[str, Any]) -> str | Reject:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        # csv is read with surrogateescape, which maps an invalid byte 0xNN to U+DCNN.
        escaped = 0xDC80 <= ord(value[error.start]) <= 0xDCFF
        reason = "invalid_utf8" if escaped else "lone_surrogate"
        return reject("read", reason, f"column {column!r}, character {error.start}", values)
    return value


def _label(values: Mapping[str, Any], spec: Input) -> str | None:
    """The true label as text; one that is no text is as good as none, for a prediction does not need it."""
    try:
        value = _optional(values, spec.label) if spec.label else None
        return cast_value(value, "string") if isinstance(value, str | int) else None
    except (ValueError, TypeError):
        return None


def _row_id(values: Mapping[str, Any], spec: Input) -> str | Reject | None:
    if spec.id is None:
        return None
    value = _required(values, spec.id, "missing_id")
    if isinstance(value, Reject):
        return value
    if value is None or not isinstance(value, str | int) or isinstance(value, bool):
        return reject(
            "read", "missing_id", f"id column {spec.id!r} is {shown(value)}; an id is a text or a whole number", values
        )
    return _encodable(str(value), spec.id, values)
