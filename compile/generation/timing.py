"""What one full set of slots costs, so that the shape planner can weigh prompt lengths and slots against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from compile.generation.requests import Request, TextRules
from compile.generation.sampling import Sampling
from compile.generation.slots import SlotGrid
from compile.generation.static import StaticGenerator
from compile.targets.decoders import Generator

PROBE_TOKENS = 8
ENGINE_PROMPTS, ENGINE_PROMPT_TOKENS = 8, 64
"""Of an engine with a scheduler of its own, whose sets of slots are large: so many full prompts are timed and scaled,
and the steps are timed after prompts of so many tokens."""


def slot_seconds(
    generator: Generator, grid: SlotGrid, expected_tokens: float, vocab_size: int, clock: Callable[[], float]
) -> float:
    """Seconds for as many rows as there are slots, all with full prompts and `expected_tokens` new tokens.

    A first run warms up, one run of a single new token gives the prompts' part, one of PROBE_TOKENS the steps'; steps
    are extrapolated. It stands for what the planner calls one execution of the shape. Raises DeviceError.
    """
    probe = min(PROBE_TOKENS, grid.positions - grid.prompt_length)
    static = isinstance(generator, StaticGenerator)
    full = _requests(grid.slots if static else min(grid.slots, ENGINE_PROMPTS), grid.prompt_length, vocab_size)
    _seconds(generator, full[:1], 1, clock)
    prompts = _seconds(generator, full, 1, clock)
    first = prompts * grid.slots / len(full)
    if probe == 1:
        return first
    rows = full if static else _requests(grid.slots, min(grid.prompt_length, ENGINE_PROMPT_TOKENS), vocab_size)
    begun = prompts if static else _seconds(generator, rows, 1, clock)
    step = max(0.0, _seconds(generator, rows, probe, clock) - begun) / (probe - 1)
    return first + max(0.0, expected_tokens - 1) * step


def _requests(count: int, prompt_tokens: int, vocab_size: int) -> list[Request]:
    prompts = [np.arange(prompt_tokens, dtype=np.int64) * (row + 1) % vocab_size for row in range(count)]
    return [Request(str(row), prompt) for row, prompt in enumerate(prompts)]


def _seconds(generator: Generator, requests: Sequence[Request], new_tokens: int, clock: Callable[[], float]) -> float:
    started = clock()
    for _ in generator.generate(requests, Sampling(max_new_tokens=new_tokens), TextRules()):
        pass
    return clock() - started
