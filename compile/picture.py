"""A picture of a shape plan on a histogram of lengths: real tokens, the padding on top of them, and the boundaries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compile.planner import padding_efficiency
from compile.shapes import ShapePlan

WIDTH, HEIGHT = 860, 300
TOP, BOTTOM = 20, 30
BINS = 160
REAL, PADDING = "#2f5d8a", "#f2b179"


def plan_picture(plan: ShapePlan, counts: NDArray[np.int64]) -> str:
    """An SVG. The vertical axis is tokens per length, so that areas are work. `counts` is int64 (lengths,).

    Raises ValueError when a row is longer than the plan's longest shape.
    """
    longest = plan.max_length
    lengths = np.flatnonzero(counts)
    padded = np.array([plan.shapes[plan.index_for(int(length))].length for length in lengths], np.int64)
    bins = min(longest, BINS)
    place = np.minimum(lengths * bins // longest, bins - 1)
    real = np.bincount(place, (lengths * counts[lengths]).astype(float), bins)
    slots = np.bincount(place, (padded * counts[lengths]).astype(float), bins)
    scale = (HEIGHT - TOP - BOTTOM) / (float(slots.max(initial=0)) or 1.0)
    title = (
        f"Tokens by row length: real (dark), padding (light). Padding efficiency {padding_efficiency(plan, counts):.3f}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}" '
        f'font-family="sans-serif" font-size="10"><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        f'<text x="4" y="12" font-size="12">{title}</text>'
        f"{_bars(slots * scale, PADDING)}{_bars(real * scale, REAL)}{_boundaries(plan)}</svg>\n"
    )


def _bars(heights: NDArray[np.floating[Any]], colour: str) -> str:
    step, base = WIDTH / len(heights), HEIGHT - BOTTOM
    drawn = (
        f'<rect x="{index * step:.2f}" y="{base - height:.2f}" width="{step:.2f}" height="{height:.2f}"/>'
        for index, height in enumerate(heights.tolist())
        if height
    )
    return f'<g fill="{colour}">{"".join(drawn)}</g>'


def _boundaries(plan: ShapePlan) -> str:
    """A dashed line per shape, and its name where the one before leaves room."""
    lines, names, free_from = [], [], 0.0
    for shape in plan.shapes:
        x = shape.length / plan.max_length * WIDTH
        lines.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"/>')
        if x - free_from > 6.5 * len(str(shape)):
            names.append(f'<text x="{x - 3:.1f}" y="{HEIGHT - 12}" text-anchor="end">{shape}</text>')
            free_from = x
    return f'<g stroke="#444" stroke-dasharray="3 2">{"".join(lines)}</g>{"".join(names)}'
