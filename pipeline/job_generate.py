"""The section `generate` of a job file: how texts are made. Names, meaning and defaults are those of transformers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from pydantic import BeforeValidator, ConfigDict, Field, model_validator

GENERATED_COLUMNS = (
    "text", "finish_reason", "prompt_tokens", "output_tokens", "sample", "token_ids", "log_probability",
)  # fmt: skip
"""Output columns of a generation job beside those that every job has; with a flat json_schema also `value`."""
BATCH_API_COLUMNS = ("url", "model", "logprobs")
"""Those of lines of a batch file: whom they asked, and the last where they asked for it."""


def _chat(value: Any) -> Any:
    return {True: "true", False: "false"}.get(value, value) if isinstance(value, bool) else value


class Generate(pydantic.BaseModel):
    """Every field can change an output byte; see compile.generation.sampling.Sampling."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_new_tokens: int = Field(strict=True, ge=1, le=65_536, description="most tokens of a text; part of an artifact")
    min_new_tokens: int = Field(0, strict=True, ge=0)
    do_sample: bool = False
    temperature: float = Field(1.0, gt=0, allow_inf_nan=False)
    top_k: int = Field(50, strict=True, ge=0, description="0 keeps all")
    top_p: float = Field(1.0, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0, allow_inf_nan=False)
    presence_penalty: float = Field(0.0, allow_inf_nan=False, description="OpenAI's; over new tokens")
    frequency_penalty: float = Field(0.0, allow_inf_nan=False, description="OpenAI's; over new tokens, per occurrence")
    no_repeat_ngram_size: int = Field(0, strict=True, ge=0)
    logit_bias: dict[int, float] = Field(default_factory=dict, description="token id -> added to its logit")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field((), description="strings that end a text, cut off")
    stop_token_ids: tuple[int, ...] = ()
    json_schema: dict[str, Any] | None = Field(None, description="schema of the JSON that a text must be")
    regex: str | None = Field(None, min_length=1, description="what a text must match as a whole, in Rust's syntax")
    samples: int = Field(1, strict=True, ge=1, le=1_000, description="texts per row, num_return_sequences")
    seed: int = Field(0, strict=True)
    chat: Annotated[Literal["auto", "true", "false"], BeforeValidator(_chat)] = "auto"
    system: str | None = Field(None, min_length=1, description="system prompt")
    served_model_names: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="names of the model that lines of a batch file may give; none: any"
    )
    token_ids: bool = Field(False, description="a column with the tokens of the text")
    log_probability: bool = Field(False, description="a column with the log probability of the text")

    @model_validator(mode="after")
    def _check(self) -> Generate:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(f"min_new_tokens: {self.min_new_tokens} exceeds max_new_tokens, {self.max_new_tokens}")
        if self.samples > 1 and not self.do_sample:
            raise ValueError("samples: more than 1 needs do_sample: true; all greedy texts of a row are equal")
        if self.json_schema is not None and self.regex is not None:
            raise ValueError("regex: a text follows either a json_schema or a regex; remove one")
        if self.chat == "false" and self.system is not None:
            raise ValueError("system: a system prompt needs the model's chat template, which chat: false leaves out")
        return self
