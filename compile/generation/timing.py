"""What one full set of slots costs, so that the shape planner can weigh prompt lengths and slots against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from compile.generation.requests import Request, TextRules
from compile.generation.sampling import Sampling
from compile.generation.slots import SlotGrid
from compile.targets.decoders import Generator

PROBE_TOKENS = 8


def slot_seconds(
    generator: Generator, grid: SlotGrid, expected_tokens: float, vocab_size: int, clock: Callable[[], float]
) -> float:
    """Seconds for as many rows as there are slots, all with full prompts and `expected_tokens` new tokens.

    A first run warms up, one run of a single new token gives the prompts' part, one of PROBE_TOKENS the steps'; steps
    are extrapolated. It stands for what the planner calls one execution of the shape. Raises DeviceError.
    """
    probe = min(PROBE_TOKENS, grid.positions - grid.prompt_length)
    prompts = [np.arange(grid.prompt_length, dtype=np.int64) * (row + 1) % vocab_size for row in range(grid.slots)]
    requests = [Request(str(row), prompt) for row, prompt in enumerate(prompts)]
    _seconds(generator, requests[:1], 1, clock)
    first = _seconds(generator, requests, 1, clock)
    if probe == 1:
        return first
    step = max(0.0, _seconds(generator, requests, probe, clock) - first) / (probe - 1)
    return first + max(0.0, expected_tokens - 1) * step


def _seconds(generator: Generator, requests: Sequence[Request], new_tokens: int, clock: Callable[[], float]) -> float:
    started = clock()
    for _ in generator.generate(requests, Sampling(max_new_tokens=new_tokens), TextRules()):
        pass
    return clock() - started
