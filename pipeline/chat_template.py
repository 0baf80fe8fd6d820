"""A model's chat template: messages in, the prompt's text out, as transformers renders it but without loading that."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from compile.model import read_json
from pipeline.errors import JobError

Message = dict[str, str]
"""`role` and `content`."""


class TemplateRefusalError(Exception):
    """The template cannot render these messages: it says so itself, or fails on them."""


class ChatTemplate:
    """Renders messages up to where the model's answer begins. `ds` is the date that a template may ask for."""

    def __init__(self, source: str, special_tokens: dict[str, str], ds: str) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        # Not the clock: a night that is run again must give the same prompts.
        night = datetime.datetime.combine(datetime.date.fromisoformat(ds), datetime.time())
        environment.globals["strftime_now"] = night.strftime
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise JobError(
                f"model: its chat template is no Jinja template: {error}; set generate.chat: false"
            ) from error
        self._special_tokens = special_tokens

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt's text, special tokens spelled out. Raises TemplateRefusalError."""
        given = {"messages": list(messages), "tools": None, "documents": None, "add_generation_prompt": True}
        try:
            return self._template.render(**given, **self._special_tokens)
        except (jinja2.TemplateError, TypeError, ValueError, RecursionError) as error:
            raise TemplateRefusalError(f"the chat template refuses the messages: {error}") from error


def read_chat_template(model_dir: Path, ds: str) -> ChatTemplate | None:
    """The model's default template, None when it has none. Raises JobError, ModelError when it cannot be read."""
    settings = _settings(model_dir, "tokenizer_config.json")
    file = model_dir / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.is_file() else settings.get("chat_template")
    if isinstance(source, list):  # several, by name
        source = next((item["template"] for item in source if item.get("name") == "default"), None)
    if not source:
        return None
    names = {**_settings(model_dir, "special_tokens_map.json"), **settings}
    tokens = {name: _content(value) for name, value in names.items() if name.endswith("_token")}
    return ChatTemplate(str(source), {name: token for name, token in tokens.items() if token is not None}, ds)


def _settings(model_dir: Path, name: str) -> dict[str, Any]:
    return read_json(model_dir / name) if (model_dir / name).is_file() else {}


def _content(value: Any) -> str | None:
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's own filter escapes what HTML does not like."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks what a model said, for training; here it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Any) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        body: list[jinja2.nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body
