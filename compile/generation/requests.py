"""What is asked of a generator and what comes back: prompts as token ids in, new token ids and why they ended out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from compile.generation.constraints import Constraint
from compile.generation.sampling import Sampling, TokenLogprobs

FINISH_REASONS = {
    "stop": "the model ended the text itself",
    "stop_token": "a stop token of the job",
    "stop_string": "the text came to hold a stop string of the job, and was cut before it",
    "length": "max_new_tokens were generated",
    "nan_logits": "the model returned NaN or infinity: the row is a reject",
    "dead_end": "settings and constraint together leave no further token: the row is a reject",
}
"""Why a text ended -> what it means. A code is never renamed: readers query it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one row asks for in place of the run's settings."""

    sampling: Sampling
    constraint: Constraint | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One text to generate: one sample of one row."""

    row_id: str
    """Decides the draws, with `sample`; see compile.generation.sampling.uniform."""
    token_ids: NDArray[np.int64]
    """The prompt, special tokens included, not padded; (tokens,)."""
    sample: int = 0
    max_new_tokens: int | None = None
    """A limit of its own, at most the job's; None takes the job's."""
    expected_tokens: float | None = None
    """How many new tokens it will probably take, where something is known; only decides who goes first."""
    asked: Asked | None = None
    """Settings of its own; None takes the run's."""

    def settings(self, sampling: Sampling) -> Sampling:
        """Its own, or those of the run."""
        return self.asked.sampling if self.asked else sampling

    def limit(self, sampling: Sampling) -> int:
        """Most new tokens, with the run's settings given."""
        most = self.settings(sampling).max_new_tokens
        return min(most, self.max_new_tokens or most)

    def rules(self, text: TextRules) -> TextRules:
        """The run's, with its own constraint."""
        return replace(text, constraint=self.asked.constraint) if self.asked else text


@dataclass(frozen=True, slots=True)
class Completion:
    """What one request became. Equal for the same request wherever it ran."""

    row_id: str
    sample: int
    token_ids: tuple[int, ...]
    """New tokens, in order; the token that ended the text is the last."""
    finish_reason: str
    """See FINISH_REASONS."""
    prompt_tokens: int
    log_probability: float
    """Sum over the new tokens of the model's own log probabilities, before sampling settings changed them."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of each new token, where the settings ask for them."""
    first_token_step: int = field(default=0, compare=False)
    """Graph executions of the run until its first token, from 1: where it stood in line, not part of the result."""
    last_token_step: int = field(default=0, compare=False)

    @property
    def failed(self) -> bool:
        """Whether the row is a reject rather than a prediction."""
        return self.finish_reason in {"nan_logits", "dead_end"}


@dataclass(frozen=True, slots=True)
class TextRules:
    """What the end of a text may depend on beside its tokens."""

    decode: Callable[[Sequence[int]], str] | None = None
    """Token ids -> text without special tokens; needed for stop strings."""
    constraint: Constraint | None = None
    """What texts must look like; None lets them be anything."""
    log_probability: bool = True
    """Whether that of a completion is wanted; where it is not, an engine that would pay for it leaves NaN."""


def sample_requests(
    row_id: str, token_ids: NDArray[np.int64], sampling: Sampling, asked: Asked | None = None
) -> list[Request]:
    """The requests of one row: `num_return_sequences` samples, of its own settings where it has some."""
    count = (asked.sampling if asked else sampling).num_return_sequences
    return [Request(row_id, token_ids, sample, asked=asked) for sample in range(count)]
