"""How fast a core is at the moment: the seconds of a fixed piece of work, done beside each batch that is timed.

A core's speed halves for seconds when work of others moves in beside it, be it another machine's on the same hardware
core. Shapes are timed one after the other; without a yardstick one could look twice as dear as its neighbour, and a
plan would go around it.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compile.shapes import Shape
from compile.targets.cpu import has_bf16

SIZES = (512, 1536, 1536)
"""Of a matrix product as an encoder has them, some milliseconds of a core."""

Timings = Mapping[Shape, Sequence[tuple[float, float]]]
"""Seconds of one execution, and of the yardstick at that time (0 where it was not measured), of each measurement."""


def yardstick(precision: str) -> Callable[[], float]:
    """What does the work once and returns this thread's processor seconds for it; in bf16 where the graph is in it."""
    import torch

    torch.set_num_threads(1)
    half = precision != "fp32" and has_bf16()
    left, right = _factors(torch.bfloat16 if half else torch.float32)

    def seconds() -> float:
        started = time.thread_time()
        left @ right
        return time.thread_time() - started

    seconds()
    return seconds


@functools.cache
def _factors(dtype: Any) -> tuple[Any, Any]:
    import torch

    rows, inner, columns = SIZES
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(size, generator=generator).to(dtype) for size in ((rows, inner), (inner, columns)))


def at_best_speed(timings: Timings) -> dict[Shape, float]:
    """Median seconds of each shape, as they would be on a core that is as fast as it was at any of these times."""
    best = min((yard for pairs in timings.values() for _, yard in pairs if yard), default=0.0)
    return {
        shape: statistics.median(seconds * (best / yard) if yard else seconds for seconds, yard in pairs)
        for shape, pairs in timings.items()
    }
