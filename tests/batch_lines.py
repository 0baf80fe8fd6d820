"""Lines of batch files for tests: the shape of vLLM's example, and one wrong line for every way to be wrong."""

from __future__ import annotations

import json
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "Hello world!"}]


def chat(custom_id: str, messages: Any = HELLO, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny/llama", "messages": messages, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def completion(custom_id: str, prompt: Any = "the quick brown fox", **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny/llama", "prompt": prompt, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": COMPLETIONS, "body": body}


def vllm_example(model: str) -> list[dict[str, Any]]:
    """As the page "Offline Inference with the OpenAI Batch file format" of vLLM has it."""
    return [
        {
            "custom_id": f"request-{number}",
            "method": "POST",
            "url": CHAT,
            "body": {
                "model": model,
                "messages": [
                    {"role": "system", "content": f"You are {kind} assistant."},
                    {"role": "user", "content": "Hello world!"},
                ],
                "max_completion_tokens": 1000,
            },
        }
        for number, kind in ((1, "a helpful"), (2, "an unhelpful"))
    ]


def without(line: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in names}


def _named(number: int, line: dict[str, Any]) -> dict[str, Any]:
    return {**line, "custom_id": f"bad-{number}"}


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


USER = {"role": "user"}
_WRONG: list[tuple[dict[str, Any], str, str | None]] = [
    ({**chat(""), "method": "GET"}, "bad_endpoint", "method"),
    ({**chat(""), "url": "/v1/embeddings"}, "bad_endpoint", "url"),
    (without(chat(""), "url"), "bad_endpoint", "url"),
    ({**chat(""), "url": ["/v1/completions"]}, "bad_endpoint", "url"),
    (without(chat(""), "method"), "bad_endpoint", "method"),
    (without(chat(""), "body"), "bad_request", "body"),
    ({**chat(""), "body": []}, "bad_request", "body"),
    (chat("", model=5), "bad_request", "body.model"),
    (chat("", model="other"), "unknown_model", "body.model"),
    (chat("", None), "bad_request", "body.messages"),
    (completion("", None), "bad_request", "body.prompt"),
    (chat("", []), "bad_messages", "body.messages"),
    (chat("", "hi"), "bad_messages", "body.messages"),
    (chat("", ["hi"]), "bad_messages", "body.messages.0"),
    (chat("", [USER]), "bad_messages", "body.messages.0.content"),
    (chat("", [{**USER, "content": [{"type": "text"}]}]), "bad_messages", "body.messages.0.content.0"),
    (chat("", [{**USER, "content": [{"type": "image_url"}]}]), "unsupported_field", "body.messages.0.content.0"),
    (chat("", [{**USER, "content": "x", "tool_calls": [{}]}]), "unsupported_field", "body.messages.0"),
    (chat("", [{"role": "refuse", "content": "x"}]), "bad_messages", None),
    (completion("", ["a", "b"]), "unsupported_field", "body.prompt"),
    (completion("", [1, "b"]), "unsupported_field", "body.prompt"),
    (completion("", 5), "bad_request", "body.prompt"),
    (completion("", [-1]), "bad_request", "body.prompt"),
    (completion("", [99_999]), "bad_request", "body.prompt"),
    (completion("", []), "no_tokens", None),
    (completion("", "x" * 200), "too_long", None),
    (chat("", max_tokens=0), "bad_request", "body.max_tokens"),
    (chat("", max_tokens="5"), "bad_request", "body.max_tokens"),
    (chat("", max_completion_tokens=999), "bad_request", "body.max_tokens"),
    (chat("", min_tokens=9, max_tokens=2), "bad_request", "body.min_tokens"),
    (chat("", temperature=-1), "bad_request", "body.temperature"),
    (chat("", temperature=float("nan")), "bad_request", "body.temperature"),
    (chat("", top_p=0), "bad_request", "body.top_p"),
    (chat("", n=2, temperature=0), "bad_request", "body.n"),
    (chat("", n=0), "bad_request", "body.n"),
    (chat("", stop=[""]), "bad_request", "body.stop"),
    (chat("", seed=1 << 63), "bad_request", "body.seed"),
    (chat("", logit_bias={"99999": 1}), "bad_request", "body.logit_bias"),
    (chat("", logit_bias={"5": 101}), "bad_request", "body.logit_bias"),
    (chat("", logit_bias={"hello": 1}), "bad_request", "body.logit_bias"),
    (chat("", stop_token_ids=[99_999]), "bad_request", "body.stop_token_ids"),
    (chat("", response_format={"type": "json_schema"}), "bad_request", "body.response_format"),
    (chat("", guided_regex="("), "bad_request", "body.guided_regex"),
    (chat("", guided_json={"type": "strin"}), "bad_request", "body.guided_json"),
    (chat("", guided_json=_nested(101)), "bad_request", "body.guided_json"),
    (chat("", response_format={"type": "json_schema", "json_schema": {"schema": _nested(400)}}), "bad_request",
     "body.response_format"),
    (chat("", guided_json="{"), "bad_request", "body.guided_json"),
    (chat("", guided_regex="a", guided_choice=["b"]), "bad_request", "body.guided_choice"),
    (chat("", guided_regex="a", ignore_eos=True), "bad_request", "body.ignore_eos"),
    (chat("", response_format={"type": "structural_tag"}), "unsupported_field", "body.response_format"),
    (chat("", structured_outputs={"grammar": "x"}), "unsupported_field", "body.structured_outputs"),
    (chat("", stream=True), "unsupported_field", "body.stream"),
    (chat("", logprobs=3), "bad_request", "body.logprobs"),
    (chat("", top_logprobs=3), "bad_request", "body.top_logprobs"),
    (chat("", logprobs=True, top_logprobs=21), "bad_request", "body.top_logprobs"),
    (completion("", logprobs=True), "bad_request", "body.logprobs"),
    (completion("", logprobs=-1), "bad_request", "body.logprobs"),
    (completion("", prompt_logprobs=1), "unsupported_field", "body.prompt_logprobs"),
    (completion("", echo=True), "unsupported_field", "body.echo"),
    (completion("", best_of=2), "unsupported_field", "body.best_of"),
    (chat("", tools=[{"type": "function"}]), "unsupported_field", "body.tools"),
    (chat("", chat_template="x"), "unsupported_field", "body.chat_template"),
    (chat("", use_beam_search=True), "unsupported_field", "body.use_beam_search"),
    (chat("", add_special_tokens=True), "unsupported_field", "body.add_special_tokens"),
    (chat("", temprature=0.5), "unsupported_field", "body.temprature"),
]  # fmt: skip
WRONG = [(_named(number, line), reason, param) for number, (line, reason, param) in enumerate(_WRONG)]
"""Lines with a custom_id, the reason of their reject and the field that is named."""

UNNAMED: list[tuple[bytes, str]] = [
    (b"{nope", "malformed_json"),
    (b"[1]", "not_an_object"),
    (b'{"custom_id": "\xff"}', "invalid_utf8"),
    (json.dumps(without(chat(""), "custom_id")).encode(), "missing_id"),
    (json.dumps(chat("")).encode(), "missing_id"),
    (json.dumps({**chat(""), "custom_id": 7}).encode(), "missing_id"),
    (b'{"custom_id": "\\ud800"}', "lone_surrogate"),
]
"""Lines whose custom_id nobody can tell, and the reason of their reject."""
HARMLESS = {
    "user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "stream": False, "n": None,
    "logprobs": False, "top_logprobs": 0, "tools": None, "tool_choice": "none", "response_format": {"type": "text"},
    "skip_special_tokens": True, "length_penalty": 1.0, "stop": None, "best_of": 1,
}  # fmt: skip
"""Fields and values that ask for nothing."""
