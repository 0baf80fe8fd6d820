"""What a request's body may hold: settings that are obeyed, fields that change nothing, and values that ask nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import pydantic
from pydantic import ConfigDict, Field

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROMPT_FIELDS = {CHAT: "messages", COMPLETIONS: "prompt"}
"""The endpoints that there are, and where each has its prompt."""

HARMLESS = frozenset({
    "model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "parallel_tool_calls", "priority", "request_id", "cache_salt", "include_reasoning",
    "spaces_between_special_tokens", "guided_decoding_backend", "return_tokens_as_token_ids",
})  # fmt: skip
"""Change no text, whatever their value."""

MAX_DEPTH = 100
"""Of a schema: deeper ones would be read here and break a later step, which has less of the stack left."""
_NO: tuple[Any, ...] = ()
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "stream": (False,), "stream_options": _NO, "prompt_logprobs": _NO,
    "echo": (False,), "suffix": ("",), "best_of": (1,), "tools": ([],), "tool_choice": ("none", "auto"),
    "functions": ([],), "function_call": ("none", "auto"), "modalities": (["text"],), "audio": _NO, "prediction": _NO,
    "web_search_options": _NO, "reasoning_effort": _NO, "verbosity": _NO, "use_beam_search": (False,),
    "length_penalty": (1, 1.0), "include_stop_str_in_output": (False,), "skip_special_tokens": (True,),
    "truncate_prompt_tokens": _NO, "allowed_token_ids": _NO, "bad_words": ([],), "add_generation_prompt": (True,),
    "continue_final_message": (False,), "documents": ([],), "chat_template": _NO, "chat_template_kwargs": ({},),
    "mm_processor_kwargs": ({},), "guided_grammar": _NO, "structural_tag": _NO, "guided_whitespace_pattern": _NO,
    "logits_processors": ([],), "vllm_xargs": ({},), "kv_transfer_params": _NO, "prompt_embeds": _NO,
}  # fmt: skip
"""Known to OpenAI or vLLM, but not here -> values, beside null, that ask for nothing."""
_SPECIAL_TOKENS = {CHAT: False, COMPLETIONS: True}
"""`add_special_tokens` as vLLM has it when it is not given, which is how prompts are tokenised here."""


class FieldError(Exception):
    """A field of a request is wrong or asks for what there is not; `reason` is a code of pipeline.rejects."""

    def __init__(self, reason: str, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.reason = reason


class Settings(pydantic.BaseModel):
    """The fields that are obeyed, in the words of the API; null is as good as absent."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    min_tokens: int | None = Field(None, ge=0)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    n: int | None = Field(None, ge=1, le=128)
    stop: str | list[Annotated[str, Field(min_length=1)]] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    logprobs: bool | Annotated[int, Field(ge=0, le=20)] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: Annotated[str, Field(min_length=1)] | None = None
    guided_choice: Annotated[list[str], Field(min_length=1)] | None = None
    structured_outputs: dict[str, Any] | None = None


def asked_of(body: Mapping[str, Any], url: str) -> dict[str, Any]:
    """What a body asks for, in the words of the section `generate`; JSON. Raises FieldError.

    `n` stands for samples, `ignore_eos` is its own word, and `constraint` is [json_schema or regex, what it says, the
    field that asked for it].
    """
    left = {name: value for name, value in body.items() if value is not None and name not in HARMLESS}
    left.pop(PROMPT_FIELDS[url], None)
    if left.pop("add_special_tokens", _SPECIAL_TOKENS[url]) is not _SPECIAL_TOKENS[url]:
        raise FieldError("unsupported_field", "body.add_special_tokens", "only the default of vLLM; leave it out")
    for name, accepted in NEUTRAL.items():
        value = left.pop(name, None)
        if value is not None and not any(type(value) is type(one) and value == one for one in accepted):
            raise FieldError("unsupported_field", f"body.{name}", f"{_shown(value)} cannot be done here; leave it out")
    try:
        settings = Settings.model_validate(left)
    except pydantic.ValidationError as error:
        raise _explained(error) from error
    asked = _translated(settings) | {"logprobs": _logprobs(settings, url)}
    return {name: value for name, value in asked.items() if value is not None}


def _explained(error: pydantic.ValidationError) -> FieldError:
    first = error.errors()[0]
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return FieldError("unsupported_field", f"body.{name}", "is not known here; leave it out")
    return FieldError("bad_request", f"body.{name}", f"{first['msg']}, not {_shown(first['input'])}")


def _translated(settings: Settings) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "max_new_tokens": settings.max_completion_tokens or settings.max_tokens,
        "min_new_tokens": settings.min_tokens,
        "top_k": None if settings.top_k is None else max(0, settings.top_k),
        "stop": [settings.stop] if isinstance(settings.stop, str) else settings.stop,
        "constraint": _constraint(settings),
        "ignore_eos": settings.ignore_eos or None,
    }
    same = (
        "temperature", "top_p", "min_p", "n", "stop_token_ids", "seed", "presence_penalty", "frequency_penalty",
        "repetition_penalty", "logit_bias",
    )  # fmt: skip
    return asked | {name: getattr(settings, name) for name in same}


def _logprobs(settings: Settings, url: str) -> int | None:
    """How many alternatives are told beside each token, None for nothing: a switch and a number in one of the two
    endpoints, one number in the other."""
    given, top = settings.logprobs, settings.top_logprobs or 0
    if top and (given is not True or url != CHAT):
        raise FieldError("bad_request", "body.top_logprobs", f"only with logprobs: true of {CHAT}")
    if given is None or given is False:
        return None
    if isinstance(given, bool) != (url == CHAT):
        raise FieldError("bad_request", "body.logprobs", f"{_shown(given)} is not what {url} has: true, or a number")
    return top if url == CHAT else int(given)


def _constraint(settings: Settings) -> list[Any] | None:
    """The one rule that a body has for its text. Raises FieldError for two, and for kinds that there are not."""
    found: dict[str, list[Any]] = {}
    if settings.response_format is not None and settings.response_format.get("type") != "text":
        found["response_format"] = _formatted(settings.response_format)
    if settings.guided_json is not None:
        found["guided_json"] = ["json_schema", _schema("body.guided_json", settings.guided_json)]
    if settings.guided_regex is not None:
        found["guided_regex"] = ["regex", settings.guided_regex]
    if settings.guided_choice is not None:
        found["guided_choice"] = ["regex", _choice(settings.guided_choice)]
    if settings.structured_outputs is not None:
        found["structured_outputs"] = _structured(settings.structured_outputs)
    if len(found) > 1:
        raise FieldError("bad_request", f"body.{list(found)[1]}", f"{' and '.join(found)}: give one of them")
    return next(([*rule, name] for name, rule in found.items()), None)


def _formatted(response_format: Mapping[str, Any]) -> list[Any]:
    kind = response_format.get("type")
    if kind == "json_object":
        return ["json_schema", {"type": "object"}]
    if kind != "json_schema":
        said = f"type {_shown(kind)} is none of text, json_object and json_schema"
        raise FieldError("unsupported_field" if kind else "bad_request", "body.response_format", said)
    named = response_format.get("json_schema")
    if not isinstance(named, dict) or not isinstance(named.get("schema"), dict):
        raise FieldError("bad_request", "body.response_format", "write json_schema: {name: ..., schema: {...}}")
    return ["json_schema", _schema("body.response_format", named["schema"])]


def _structured(asked: Mapping[str, Any]) -> list[Any]:
    """vLLM's newer name for the guided_ fields."""
    field = "body.structured_outputs"
    given = {name: value for name, value in asked.items() if value is not None and value is not False}
    if len(given) != 1:
        raise FieldError("bad_request", field, "give one of json, regex, choice and json_object")
    ((name, value),) = given.items()
    if name == "json":
        return ["json_schema", _schema(field, value)]
    if name == "json_object" and value is True:
        return ["json_schema", {"type": "object"}]
    if name == "regex" and isinstance(value, str) and value:
        return ["regex", value]
    if name == "choice" and isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return ["regex", _choice(value)]
    reason = "bad_request" if name in ("json_object", "regex", "choice") else "unsupported_field"
    raise FieldError(reason, field, f"{name}: {_shown(value)} cannot be used; give json, regex, choice or json_object")


def _schema(field: str, value: Any) -> dict[str, Any]:
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise FieldError("bad_request", field, f"is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise FieldError("bad_request", field, f"{_shown(found)} is no JSON schema")
    if _depth(found) > MAX_DEPTH:
        raise FieldError("bad_request", field, f"is nested over {MAX_DEPTH} levels deep")
    return found


def _depth(value: Any) -> int:
    """Lists and objects within each other, counted up to just over MAX_DEPTH and without recursion."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        inner = [one for one in level if isinstance(one, dict | list)]
        level = [item for one in inner for item in (one.values() if isinstance(one, dict) else one)]
        depth += bool(inner)
    return depth


def _choice(texts: list[str]) -> str:
    """A regular expression, in Rust's syntax, of one of the texts."""
    return "|".join("".join(f"\\{c}" if c in "\\.+*?()|[]{}^$#&-~/" else c for c in text) for text in texts)


def _shown(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)[:80]
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"
