"""Drives a static decoder: scheduler, graphs and sampler together turn requests into completions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from compile.generation.constraints import Matcher
from compile.generation.requests import Completion, Request, TextRules
from compile.generation.sampling import Chooser, Sampling, TokenLogprobs, log_probability, token_logprobs
from compile.generation.slots import Decode, Prefill, SlotGrid, SlotScheduler, SlotUse, Work
from compile.generation.stops import finish_reason
from compile.targets.decoders import Generator, StaticDecoder

Found = TypeVar("Found")
"""What a step gives each of its texts: logits, or a token that was chosen already."""


@dataclass(slots=True)
class Text:
    """One request in progress."""

    request: Request
    sampling: Sampling
    limit: int
    chooser: Chooser
    matcher: Matcher | None
    tokens: NDArray[np.int64]
    """Prompt and new tokens; of the array, the first `count` are there."""
    count: int
    log_probability: float = 0.0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    first_step: int = 0
    reason: str | None = None
    """Why it ended; None while it goes on."""

    @property
    def new_tokens(self) -> list[int]:
        found: list[int] = self.tokens[len(self.request.token_ids) : self.count].tolist()
        return found


class StaticGenerator:
    """See compile.targets.decoders.Generator. Memory holds one text per slot, and the requests."""

    def __init__(self, decoder: StaticDecoder) -> None:
        self.decoder = decoder
        self.use: SlotUse | None = None
        """Counts of the last `generate`, complete when it is exhausted."""

    def generate(self, requests: Sequence[Request], sampling: Sampling, text: TextRules) -> Iterator[Completion]:
        """Each request exactly once, in the order in which they finish.

        Raises ValueError before anything runs when a prompt or a limit does not fit, DeviceError when a graph fails.
        """

        def advance(one: Text, logits: NDArray[np.float32]) -> None:
            _advance(one, logits, text)

        def told(use: SlotUse) -> None:
            self.use = use

        return run_slots(self.decoder.grid, requests, sampling, text, self._execute, advance, told)

    def _execute(self, step: Prefill | Decode, texts: Sequence[Text]) -> NDArray[np.float32]:
        """Logits of the step's texts, float32 (texts, vocab)."""
        if isinstance(step, Prefill):
            return self.decoder.prefill(step.slots, [one.request.token_ids for one in texts])
        return self.decoder.decode(*fed(self.decoder.grid, step, texts))[list(step.slots)]


def run_slots(
    grid: SlotGrid,
    requests: Sequence[Request],
    sampling: Sampling,
    text: TextRules,
    execute: Callable[[Prefill | Decode, Sequence[Text]], Sequence[Found] | NDArray[np.float32]],
    advance: Callable[[Text, Found], None],
    told: Callable[[SlotUse], None],
) -> Iterator[Completion]:
    """Completions in the order in which they finish: `execute` runs a step, `advance` gives a text what came out.

    `told` gets the counts after each step. Raises ValueError at once when a prompt or a limit does not fit the grid.
    """
    limits = [request.limit(sampling) for request in requests]
    works = [
        Work(len(request.token_ids), limit, request.expected_tokens)
        for request, limit in zip(requests, limits, strict=True)
    ]
    scheduler = SlotScheduler(works, grid)

    def run() -> Iterator[Completion]:
        living: dict[int, Text] = {}
        step_number = 0
        while (step := scheduler.next()) is not None:
            step_number += 1
            if isinstance(step, Prefill):
                for index in step.works:
                    living[index] = _begin(requests[index], limits[index], sampling, text, step_number)
            texts = [living[index] for index in step.works]
            for one, found in zip(texts, execute(step, texts), strict=True):
                advance(one, found)
            scheduler.finish([slot for slot, one in zip(step.slots, texts, strict=True) if one.reason])
            told(scheduler.use())
            for index, one in zip(step.works, texts, strict=True):
                if one.reason:
                    del living[index]
                    yield _completion(one, step_number)

    return run()


def fed(grid: SlotGrid, step: Decode, texts: Sequence[Text]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What a decode step feeds: each slot's last token and its position, int64 (slots,); idle slots 0 at 0."""
    tokens, positions = np.zeros((2, grid.slots), np.int64)
    for slot, position, one in zip(step.slots, step.positions, texts, strict=True):
        tokens[slot], positions[slot] = one.tokens[one.count - 1], position
    return tokens, positions


def as_generator(loaded: StaticDecoder | Generator) -> Generator:
    """What `DecoderTarget.load` returned, as something that generates: static graphs get the scheduler and sampler."""
    return loaded if isinstance(loaded, Generator) else StaticGenerator(loaded)


def _begin(request: Request, limit: int, sampling: Sampling, text: TextRules, step: int) -> Text:
    tokens = np.concatenate([request.token_ids.astype(np.int64), np.zeros(limit, np.int64)])
    own, constraint = request.settings(sampling), request.rules(text).constraint
    return Text(
        request=request,
        sampling=own,
        limit=limit,
        chooser=Chooser(own, request.token_ids.tolist(), request.row_id, request.sample),
        matcher=constraint.matcher() if constraint else None,
        tokens=tokens,
        count=len(request.token_ids),
        first_step=step,
    )


def _advance(one: Text, logits: NDArray[np.float32], text: TextRules) -> None:
    """Choose the next token of a text and see whether it is the last."""
    if not np.isfinite(logits.max()):  # minus infinity in places is a model's way to rule tokens out
        one.reason = "nan_logits"
        return
    allowed = one.matcher.allowed() if one.matcher else None
    token = one.chooser.choose(logits, one.tokens[: one.count], allowed)
    if token is None:
        one.reason = "dead_end"
        return
    one.tokens[one.count] = token
    one.count += 1
    one.log_probability = one.log_probability + log_probability(logits, token) if text.log_probability else math.nan
    if one.sampling.logprobs is not None:
        one.logprobs.append(token_logprobs(logits, token, one.sampling.logprobs))
    if one.matcher:
        one.matcher.take(token)
    one.reason = finish_reason(one.sampling, one.new_tokens, one.limit, text.decode)


def _completion(one: Text, step: int) -> Completion:
    assert one.reason is not None
    return Completion(
        row_id=one.request.row_id,
        sample=one.request.sample,
        token_ids=tuple(one.new_tokens),
        finish_reason=one.reason,
        prompt_tokens=len(one.request.token_ids),
        log_probability=one.log_probability,
        logprobs=tuple(one.logprobs),
        first_token_step=one.first_step,
        last_token_step=step,
    )
