"""How the next token is chosen from logits: settings named as in transformers, and chance that belongs to the row."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compile.lean_imports import transformers_package


@dataclass(frozen=True, slots=True)
class Sampling:
    """What one job asks for. Names, meaning and defaults are those of transformers' GenerationConfig.

    A model's own generation_config.json is not applied, except for its end-of-sequence tokens: what a job does is in
    the job. Raises ValueError that names the field.
    """

    do_sample: bool = False
    """False takes the most probable token; temperature, top_k, top_p and min_p then mean nothing."""
    temperature: float = 1.0
    top_k: int = 50
    """0 keeps all."""
    top_p: float = 1.0
    min_p: float | None = None
    repetition_penalty: float = 1.0
    """Over prompt and new tokens."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token that is among the new ones. This and the next are OpenAI's and vLLM's;
    transformers has neither."""
    frequency_penalty: float = 0.0
    """Subtracted once for each time that a token is among the new ones."""
    no_repeat_ngram_size: int = 0
    """Over prompt and new tokens; 0 allows all."""
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    """Token ids -> what is added to the logit of the last when the others precede it; one id is a plain logit bias."""
    max_new_tokens: int = 20
    min_new_tokens: int = 0
    eos_token_id: tuple[int, ...] = ()
    """Tokens that end a text: the model's, see `compile.generation.stops.eos_token_ids`."""
    stop_token_ids: tuple[int, ...] = ()
    """More tokens that end it; transformers has them in eos_token_id too. min_new_tokens holds back both."""
    stop_strings: tuple[str, ...] = ()
    num_return_sequences: int = 1
    seed: int = 0
    """Of the job; with row id, sample number and position it decides every draw."""
    logprobs: int | None = None
    """How many of the most probable tokens are told beside each new one, with the model's own log probabilities; None
    tells nothing. No part of transformers' config."""

    def __post_init__(self) -> None:
        for name, fits, need in (
            ("temperature", self.temperature > 0, "above 0; do_sample: false is the greedy choice"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", self.min_p is None or 0 <= self.min_p <= 1, "between 0 and 1"),
            ("repetition_penalty", self.repetition_penalty > 0, "above 0"),
            ("presence_penalty", math.isfinite(self.presence_penalty), "finite"),
            ("frequency_penalty", math.isfinite(self.frequency_penalty), "finite"),
            ("no_repeat_ngram_size", self.no_repeat_ngram_size >= 0, "at least 0"),
            ("sequence_bias", all(ids for ids, _ in self.sequence_bias), "given for at least one token id each"),
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("min_new_tokens", 0 <= self.min_new_tokens <= self.max_new_tokens, "between 0 and max_new_tokens"),
            ("stop_strings", all(self.stop_strings), "not empty"),
            ("logprobs", self.logprobs is None or self.logprobs >= 0, "at least 0"),
            ("num_return_sequences", self.num_return_sequences >= 1, "at least 1"),
            ("num_return_sequences", self.do_sample or self.num_return_sequences == 1, "1 without do_sample"),
        ):
            if not fits:
                raise ValueError(f"{name} must be {need}, not {getattr(self, name)!r}")

    @property
    def ends(self) -> frozenset[int]:
        """All tokens that end a text."""
        return frozenset((*self.eos_token_id, *self.stop_token_ids))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Sampling:
        """The inverse of `to_json`, also after a trip through JSON. Raises ValueError that lists the valid names."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise ValueError(f"unknown sampling settings {', '.join(unknown)}; choose from: {', '.join(sorted(known))}")
        values = dict(data)
        for name in ("eos_token_id", "stop_token_ids", "stop_strings"):
            if name in values:
                values[name] = tuple(values[name])
        if "sequence_bias" in values:
            values["sequence_bias"] = tuple((tuple(ids), float(bias)) for ids, bias in values["sequence_bias"])
        return cls(**values)


def uniform(seed: int, row_id: str, sample: int, position: int) -> float:
    """The draw of one new token, in [0, 1): the same number wherever, whenever and beside whomever the row runs.

    53 bits of BLAKE2b; `position` counts new tokens from 0. Draws of different arguments are independent.
    """
    text = f"{seed}\0{sample}\0{position}\0{row_id}".encode(errors="surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8, person=b"lengthwise").digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


class Chooser:
    """Chooses the tokens of one request. It holds transformers' processors, some of which keep state per request."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], row_id: str, sample: int = 0) -> None:
        self._sampling = sampling
        self._row_id = row_id
        self._sample = sample
        self._prompt_tokens = len(prompt)
        self._rules = rules(sampling, len(prompt))
        self._warpers = warpers(sampling) if sampling.do_sample else []

    def choose(
        self, logits: NDArray[np.float32], tokens: NDArray[np.int64], allowed: NDArray[np.bool_] | None = None
    ) -> int | None:
        """The next token after `tokens` (prompt and new ones) from float32 (vocab,) logits without NaN.

        `allowed`, bool (vocab,), leaves out what a constraint forbids. None when settings and constraint together
        leave no token.
        """
        if not (self._rules or self._sampling.do_sample or allowed is not None):
            return int(logits.argmax())
        scores = self._scores(logits, tokens, allowed)
        best = int(scores.argmax())
        if scores[best] == -np.inf:
            return None
        if not self._sampling.do_sample:
            return best
        ids, probabilities = _candidates(scores, self._sampling.top_k, self._warpers)
        point = uniform(self._sampling.seed, self._row_id, self._sample, len(tokens) - self._prompt_tokens)
        return int(ids[draw(probabilities, point)])

    def distribution(
        self, logits: NDArray[np.float32], tokens: NDArray[np.int64], allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Token ids that `choose` draws from, ascending, and their probabilities; both (candidates,)."""
        return _candidates(self._scores(logits, tokens, allowed), self._sampling.top_k, self._warpers)

    def _scores(
        self, logits: NDArray[np.float32], tokens: NDArray[np.int64], allowed: NDArray[np.bool_] | None
    ) -> NDArray[np.float32]:
        import torch

        scores = torch.from_numpy(np.array(logits, np.float32))[None]
        ids = torch.from_numpy(tokens)[None]
        for rule in self._rules:
            scores = rule(ids, scores)
        found: NDArray[np.float32] = scores[0].numpy()
        return found if allowed is None else np.where(allowed, found, np.float32(-np.inf))


def rules(sampling: Sampling, prompt_tokens: int) -> list[Any]:
    """transformers' processors that hold with and without sampling, in the order in which `generate` applies them."""
    transformers_package()
    import transformers.generation.logits_process as process

    found: list[Any] = []
    if sampling.sequence_bias:
        found.append(process.SequenceBiasLogitsProcessor([[list(ids), bias] for ids, bias in sampling.sequence_bias]))
    if sampling.repetition_penalty != 1.0:
        found.append(process.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.presence_penalty or sampling.frequency_penalty:
        found.append(_Penalties(sampling.presence_penalty, sampling.frequency_penalty, prompt_tokens))
    if sampling.no_repeat_ngram_size:
        found.append(process.NoRepeatNGramLogitsProcessor(sampling.no_repeat_ngram_size))
    if sampling.min_new_tokens and sampling.ends:
        ends = sorted(sampling.ends)
        found.append(process.MinNewTokensLengthLogitsProcessor(prompt_tokens, sampling.min_new_tokens, ends))
    return found


class _Penalties:
    """As https://platform.openai.com/docs/api-reference/chat defines the two penalties; over new tokens alone."""

    def __init__(self, presence: float, frequency: float, prompt_tokens: int) -> None:
        self._presence = presence
        self._frequency = frequency
        self._prompt_tokens = prompt_tokens

    def __call__(self, ids: Any, scores: Any) -> Any:
        """Token ids (1, tokens) and scores (1, vocab), as transformers' processors are called."""
        tokens, counts = ids[0, self._prompt_tokens :].unique(return_counts=True)
        penalised = scores.clone()
        penalised[0, tokens] -= self._presence + self._frequency * counts
        return penalised


def warpers(sampling: Sampling) -> list[Any]:
    """transformers' processors of sampling that come after top_k, and temperature before it, in `generate`'s order."""
    transformers_package()
    import transformers.generation.logits_process as process

    found: list[Any] = []
    if sampling.temperature != 1.0:
        found.append(process.TemperatureLogitsWarper(float(sampling.temperature)))
    if sampling.top_k:
        found.append(process.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        found.append(process.TopPLogitsWarper(float(sampling.top_p)))
    if sampling.min_p is not None:
        found.append(process.MinPLogitsWarper(float(sampling.min_p)))
    return found


def _candidates(
    scores: NDArray[np.float32], top_k: int, warpers: Sequence[Any]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Token ids (ascending) that may be drawn from (vocab,) scores, and their probabilities; both (candidates,).

    All warpers but top_k see the kept scores only, so only the best top_k are handed to them: sorting a vocabulary of
    50,000 per token would cost more than the model. Ties with the last of them stay in, as in TopKLogitsWarper.
    """
    import torch

    kept = np.flatnonzero(scores > -np.inf)
    if top_k and top_k < len(kept):
        least = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
        kept = np.flatnonzero(scores >= least)
    warped = torch.from_numpy(scores[kept])[None]
    for warper in warpers:
        warped = warper(None, warped)
    values = warped[0].numpy().astype(np.float64)
    weights = np.exp(values - values.max())
    return kept, weights / weights.sum()


def draw(probabilities: NDArray[np.float64], point: float) -> int:
    """Index of the interval of cumulated probability that holds `point`, in [0, 1); never one of probability 0."""
    ends = np.cumsum(probabilities)
    index = int(np.searchsorted(ends, point * ends[-1], side="right"))
    return min(index, int(np.flatnonzero(probabilities)[-1]))


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One new token and what else was probable in its place: log probabilities before any setting changed them."""

    token: int
    log_probability: float
    top: tuple[tuple[int, float], ...]
    """The most probable tokens, best first; of equals the lower id."""


def token_logprobs(logits: NDArray[np.float32], token: int, count: int) -> TokenLogprobs:
    """From float32 (vocab,) logits without NaN, with the `count` most probable tokens."""
    count = min(count, len(logits))
    least = np.partition(logits, len(logits) - count)[len(logits) - count] if count else np.inf
    best = np.flatnonzero(logits >= least)
    best = best[np.argsort(-logits[best], kind="stable")][:count]
    top = tuple((int(one), log_probability(logits, int(one))) for one in best)
    return TokenLogprobs(token, log_probability(logits, token), top)


def log_probability(logits: NDArray[np.float32], token: int) -> float:
    """Natural logarithm of the model's own probability of `token`, before any setting changed it."""
    highest = float(logits.max())
    return float(logits[token]) - highest - float(np.log(np.exp(logits.astype(np.float64) - highest).sum()))
