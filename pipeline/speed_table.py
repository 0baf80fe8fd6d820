"""How measured speeds are shown: a Markdown table, and a picture of latency and throughput. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from pipeline.speed import FIGURES, Speed

COLUMNS = {
    "slots": "slots",
    "prompt_tokens": "prompt",
    "new_tokens": "new",
    "encoding_s": "encoding, s",
    "latency_p50_s": "latency p50, s",
    "latency_p95_s": "latency p95, s",
    "token_s": "per token, s",
    "generated_tokens_per_second": "generated tokens/s",
    "total_tokens_per_second": "all tokens/s",
}
"""Field of a Speed -> head of its column."""

BAR, GAP, LABEL, WIDTH, HEAD = 18, 10, 150, 420, 44
ENCODING, DECODING, RATE = "#f2b179", "#2f5d8a", "#6a9a5b"


def markdown(title: str, speeds: Sequence[Speed]) -> str:
    """The table with its title, and what each figure means."""
    lines = [title, "", "| " + " | ".join(COLUMNS.values()) + " |", "|" + " ---: |" * len(COLUMNS)]
    lines += ["| " + " | ".join(_cell(getattr(one, name)) for name in COLUMNS) + " |" for one in speeds]
    lines += ["", *(f"- {COLUMNS[name]}: {meaning}." for name, meaning in FIGURES.items())]
    return "\n".join(lines) + "\n"


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4f}" if value < 1 else f"{value:,.2f}"


def picture(title: str, speeds: Sequence[Speed]) -> str:
    """An SVG: per line of the table a bar of its latency, encoding and decoding, and one of its generated tokens/s."""
    slowest = max(one.latency_p50_s for one in speeds)
    fastest = max(one.generated_tokens_per_second for one in speeds)
    parts, step = [], BAR + GAP
    for row, one in enumerate(speeds):
        y = HEAD + row * step
        encoding, latency = (WIDTH * value / slowest for value in (one.encoding_s, one.latency_p50_s))
        name = f"{one.slots} x {one.prompt_tokens} + {one.new_tokens}"
        right = LABEL + WIDTH + 90
        parts += [
            f'<text x="{LABEL - 8}" y="{y + 13}" text-anchor="end">{name}</text>',
            _bar(LABEL, y, latency, DECODING),
            _bar(LABEL, y, min(encoding, latency), ENCODING),
            f'<text x="{LABEL + latency + 5:.1f}" y="{y + 13}">{one.latency_p50_s:.3g} s</text>',
            _bar(right, y, WIDTH * one.generated_tokens_per_second / fastest, RATE),
            f'<text x="{right + WIDTH * one.generated_tokens_per_second / fastest + 5:.1f}" y="{y + 13}">'
            f"{one.generated_tokens_per_second:,.4g}</text>",
        ]
    width, height = LABEL + 2 * WIDTH + 190, HEAD + len(speeds) * step
    heads = (
        f'<text x="4" y="14" font-size="13">{escape(title)}</text>'
        f'<text x="{LABEL}" y="34">latency p50: encoding of one prompt (light), the rest (dark)</text>'
        f'<text x="{LABEL + WIDTH + 90}" y="34">generated tokens/s</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title, quote=True)}" font-family="sans-serif" font-size="11">'
        f'<rect width="{width}" height="{height}" fill="white"/>{heads}{"".join(parts)}</svg>\n'
    )


def _bar(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>'
