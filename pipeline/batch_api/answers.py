"""Lines of the Batch API's output and error files: other forms of the rows of the two tables. Pure.

The formats: https://platform.openai.com/docs/api-reference/batch/request-output, and that of vLLM's run-batch.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.batch_api.fields import CHAT
from pipeline.rejects import INFER_REASONS

FINISH_REASONS = {"stop": "stop", "stop_token": "stop", "stop_string": "stop", "length": "length"}
"""The tables' finish reasons in the words of the API."""

CODES = {
    "malformed_json": "invalid_json_line", "not_an_object": "invalid_json_line", "invalid_utf8": "invalid_json_line",
    "lone_surrogate": "invalid_json_line", "line_too_long": "invalid_json_line",
    "missing_id": "missing_required_parameter", "duplicate_id": "duplicate_custom_id", "bad_endpoint": "invalid_url",
    "bad_messages": "invalid_value", "bad_request": "invalid_value", "bad_kept_value": "invalid_value",
    "unsupported_field": "unsupported_parameter", "unknown_model": "model_not_found",
    "too_long": "context_length_exceeded", "no_tokens": "invalid_value",
}  # fmt: skip
"""Reject reason -> the API's code; of all others the reason itself, which is an error of the server."""
_FIELD = re.compile(r"(custom_id|method|url|body[\w.]*): ")
"""How the message of a fault of one field begins."""


def output_lines(predictions: pa.Table, ds: str) -> bytes:
    """One line per row that was predicted, with its samples as choices; from the table's own columns."""
    rows = predictions.to_pylist()
    groups = itertools.groupby(rows, key=lambda row: (row["source_uri"], row["source_row"]))
    return _lines(_output(list(samples), ds) for _, samples in groups)


def error_lines(rejects: pa.Table, custom_ids: Sequence[str | None]) -> bytes:
    """One line per reject; `custom_ids` are those that the lines gave, one per row of the table."""
    return _lines(_error(row, own) for row, own in zip(rejects.to_pylist(), custom_ids, strict=True))


def status_of(reason: str) -> int:
    """The HTTP status that a server would have answered with."""
    if reason == "unknown_model":
        return 404
    return 500 if reason in INFER_REASONS else 400


def _output(samples: list[dict[str, Any]], ds: str) -> dict[str, Any]:
    row = samples[0]
    chat = row["url"] == CHAT
    completion_tokens = sum(sample["output_tokens"] for sample in samples)
    body = {
        "id": ("chatcmpl-" if chat else "cmpl-") + _name(row, "completion"),
        "object": "chat.completion" if chat else "text_completion",
        "created": _midnight(ds),
        "model": row["model"],
        "choices": [_choice(sample, chat) for sample in samples],
        "usage": {
            "prompt_tokens": row["prompt_tokens"],
            "completion_tokens": completion_tokens,
            "total_tokens": row["prompt_tokens"] + completion_tokens,
        },
        "system_fingerprint": row["fingerprint"],
    }
    return _line(row, row["row_id"], {"status_code": 200, "request_id": _name(row, "request"), "body": body}, None)


def _choice(sample: Mapping[str, Any], chat: bool) -> dict[str, Any]:
    said = {"message": {"role": "assistant", "content": sample["text"]}} if chat else {"text": sample["text"]}
    told = None
    if sample["logprobs"] is not None:
        tokens = json.loads(sample["logprobs"])
        told = _chat_logprobs(tokens) if chat else _text_logprobs(tokens)
    reason = FINISH_REASONS[sample["finish_reason"]]
    return {"index": sample["sample"], **said, "logprobs": told, "finish_reason": reason}


def _chat_logprobs(tokens: list[Any]) -> dict[str, Any]:
    def one(text: str, value: float) -> dict[str, Any]:
        return {"token": text, "logprob": value, "bytes": list(text.encode())}

    return {
        "content": [{**one(text, value), "top_logprobs": [one(*other) for other in top]} for text, value, top in tokens]
    }


def _text_logprobs(tokens: list[Any]) -> dict[str, Any]:
    texts = [text for text, _, _ in tokens]
    return {
        "tokens": texts,
        "token_logprobs": [value for _, value, _ in tokens],
        "top_logprobs": [dict(top) | {text: value} for text, value, top in tokens],
        "text_offset": [0, *itertools.accumulate(map(len, texts))][: len(texts)],
    }


def _error(row: Mapping[str, Any], custom_id: str | None) -> dict[str, Any]:
    status = status_of(row["reason"])
    message = row["message"]
    field = _FIELD.match(message)
    place = f"{row['source_uri']}, row {row['source_row']}"
    about = {
        "message": message if custom_id is not None else f"{message} ({place})",
        "type": "server_error" if status == 500 else "invalid_request_error",
        "param": field[1] if field else None,
        "code": CODES.get(row["reason"], row["reason"]),
    }
    response = {"status_code": status, "request_id": _name(row, "request"), "body": {"error": about}}
    return _line(row, custom_id, response, {"code": about["code"], "message": about["message"]})


def _line(
    row: Mapping[str, Any], custom_id: str | None, response: dict[str, Any], error: dict[str, Any] | None
) -> dict[str, Any]:
    return {"id": "batch_req_" + _name(row, "line"), "custom_id": custom_id, "response": response, "error": error}


def _name(row: Mapping[str, Any], kind: str) -> str:
    """Names follow from the run and the row's place in the input: the same again whenever it is made again."""
    text = f"{row['fingerprint']}\0{kind}\0{row['source_row']}\0{row['source_uri']}".encode()
    return hashlib.blake2b(text, digest_size=12).hexdigest()


def _midnight(ds: str) -> int:
    """When the night begins, in epoch seconds: no clock is in the data."""
    day = datetime.date.fromisoformat(ds)
    return int(datetime.datetime.combine(day, datetime.time(), datetime.UTC).timestamp())


def _lines(items: Iterator[dict[str, Any]]) -> bytes:
    """ASCII alone: some readers take other characters for ends of lines."""
    return "".join(json.dumps(item, separators=(",", ":")) + "\n" for item in items).encode()
