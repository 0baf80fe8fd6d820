"""What a request asks for over the job's settings: checked when it is tokenised, obeyed when it is generated."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from compile.errors import ArtifactError
from compile.generation.constraints import GrammarConstraint, GrammarTokens, json_schema_grammar, regex_grammar
from compile.generation.requests import Asked, TextRules
from compile.generation.sampling import Sampling
from compile.generation.stops import special_stops
from pipeline.batch_api.fields import FieldError
from pipeline.layout import token_object
from pipeline.objects import Objects
from pipeline.parquet_files import read_table
from pipeline.tokenized import TokenBlock, per_row

_GRAMMARS: dict[str, Callable[[Any], str]] = {"json_schema": json_schema_grammar, "regex": regex_grammar}
_KEPT_CONSTRAINTS = 64
"""Most lines of a night share a few; a compiled one takes some MB."""
_SAME = (
    "min_new_tokens", "top_k", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logprobs",
)  # fmt: skip
"""Asked under the name that Sampling has for it."""


@dataclass(slots=True)
class Asks:
    """Requests over one job's settings and one model."""

    base: Sampling
    """The job's."""
    stop: tuple[str, ...]
    """The job's, and the next: each is replaced by itself."""
    stop_token_ids: tuple[int, ...]
    constraint: GrammarConstraint | None
    """The job's."""
    special_tokens: Mapping[str, int]
    vocab_size: int
    served: tuple[str, ...]
    """Names that `model` may have; none: any."""
    tokens: Callable[[], GrammarTokens]
    """For constraints of requests. Raises ValueError."""
    unsupported: Callable[[Sampling, TextRules], str | None]
    """Of the job's target."""
    fixed_format: bool = False
    """Whether the job's own json_schema is what all texts follow."""
    _compiled: Callable[[str], GrammarConstraint] = field(init=False)

    def __post_init__(self) -> None:
        self._compiled = functools.lru_cache(_KEPT_CONSTRAINTS)(self._compile)

    def of(self, request: Mapping[str, Any]) -> Asked:
        """Settings of one request, as pipeline.batch_api.lines wrote it. Raises FieldError."""
        if self.served and request["model"] not in (None, *self.served):
            said = f"the model {request['model']!r} does not exist; generate.served_model_names has: "
            raise FieldError("unknown_model", "body.model", said + ", ".join(self.served))
        asked = request["asked"]
        found = Asked(self._sampling(asked), self._constraint(asked))
        lacking = self.unsupported(found.sampling, TextRules(constraint=found.constraint))
        if lacking:
            raise FieldError("unsupported_field", "body", lacking)
        return found

    def _sampling(self, asked: Mapping[str, Any]) -> Sampling:
        changes: dict[str, Any] = {name: asked[name] for name in _SAME if name in asked}
        limit = asked.get("max_new_tokens", self.base.max_new_tokens)
        if limit > self.base.max_new_tokens:
            said = f"{limit} is over the job's generate.max_new_tokens, {self.base.max_new_tokens}; raise that"
            raise FieldError("bad_request", "body.max_tokens", said)
        changes["max_new_tokens"] = limit
        if asked.get("min_new_tokens", 0) > limit:
            raise FieldError("bad_request", "body.min_tokens", f"{asked['min_new_tokens']} is over max_tokens, {limit}")
        if "temperature" in asked:
            changes["do_sample"] = asked["temperature"] > 0
            changes["temperature"] = asked["temperature"] or 1.0
        if "n" in asked:
            changes["num_return_sequences"] = asked["n"]
            if asked["n"] > 1 and not changes.get("do_sample", self.base.do_sample):
                raise FieldError("bad_request", "body.n", f"{asked['n']} equal texts; give a temperature above 0")
        if "logit_bias" in asked:
            ids = {self._token("logit_bias", name): bias for name, bias in asked["logit_bias"].items()}
            changes["sequence_bias"] = tuple(((token,), bias) for token, bias in sorted(ids.items()))
        strings, stops = special_stops(asked.get("stop", self.stop), dict(self.special_tokens))
        own = [self._token("stop_token_ids", token) for token in asked.get("stop_token_ids", self.stop_token_ids)]
        changes |= {"stop_strings": strings, "stop_token_ids": tuple(sorted({*own, *stops}))}
        if "ignore_eos" in asked:
            changes["eos_token_id"] = ()
        try:
            return dataclasses.replace(self.base, **changes)
        except ValueError as error:
            raise FieldError("bad_request", "body", str(error)) from error

    def _token(self, name: str, given: Any) -> int:
        token = int(given) if isinstance(given, int) or (given.isascii() and given.isdigit()) else -1
        if not 0 <= token < self.vocab_size:
            raise FieldError(
                "bad_request", f"body.{name}", f"{given!r} is none of the model's {self.vocab_size} tokens"
            )
        return token

    def _constraint(self, asked: Mapping[str, Any]) -> GrammarConstraint | None:
        found = self._asked_constraint(*asked["constraint"]) if "constraint" in asked else self.constraint
        if found is not None and "ignore_eos" in asked:
            raise FieldError("bad_request", "body.ignore_eos", "a text that follows a format ends where that ends")
        return found

    def _asked_constraint(self, kind: str, rule: Any, name: str) -> GrammarConstraint:
        if self.fixed_format:
            said = "the job's json_schema is what all texts follow; leave the request's own out"
            raise FieldError("unsupported_field", f"body.{name}", said)
        try:
            return self._compiled(json.dumps([kind, rule]))
        except ValueError as error:
            raise FieldError("bad_request", f"body.{name}", str(error)) from error

    def _compile(self, constraint: str) -> GrammarConstraint:
        kind, rule = json.loads(constraint)
        return GrammarConstraint(self.tokens(), _GRAMMARS[kind](rule))


@dataclass(slots=True)
class RowAsks:
    """What the rows of shards ask for, read from their splits."""

    objects: Objects
    tokens_uri: str
    asks: Asks
    _known: dict[int, list[str]] = field(default_factory=dict)

    def of(self, block: TokenBlock) -> list[Asked]:
        """One per row. Raises ArtifactError for what the tokenize step must have refused."""
        try:
            return [self.asks.of(json.loads(request)) for request in per_row(block, self._known, self._read)]
        except FieldError as error:
            raise ArtifactError(f"a request that was accepted cannot be done: {error}; run all steps again") from error

    def _read(self, split: int) -> list[str]:
        kept = read_table(self.objects.get(token_object(self.tokens_uri, split, "kept.parquet")))
        found: list[str] = kept["__request"].to_pylist()
        return found
