"""What the report of a generation job says of its tokens; throughput always names which. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.event_tally import ShardEvent

FIGURES = (
    "prompt_tokens", "generated_tokens", "prompt_tokens_per_second", "generated_tokens_per_second",
    "total_tokens_per_second", "occupancy", "first_token_step", "last_token_step",
)  # fmt: skip
"""Also columns of the metrics table of such a job."""


def generation_figures(shards: Sequence[ShardEvent], infer_seconds: float) -> dict[str, Any]:
    """FIGURES over the shards whose results count; rates are per wall-clock second of the infer step, all workers.

    A prompt counts once per sample. Steps are executions of a shard's graphs until a text's first and last token, the
    mean over all texts.
    """
    prompt_tokens = sum(shard.real_tokens for shard in shards)
    generated_tokens = sum(shard.generated_tokens for shard in shards)
    decode_slots = sum(shard.decode_slots for shard in shards)
    texts = sum(shard.texts for shard in shards)

    def rate(tokens: int) -> float | None:
        return tokens / infer_seconds if infer_seconds else None

    return {
        "prompt_tokens": prompt_tokens,
        "generated_tokens": generated_tokens,
        "prompt_tokens_per_second": rate(prompt_tokens),
        "generated_tokens_per_second": rate(generated_tokens),
        "total_tokens_per_second": rate(prompt_tokens + generated_tokens),
        "occupancy": sum(shard.decode_tokens for shard in shards) / decode_slots if decode_slots else None,
        "first_token_step": sum(shard.first_token_steps for shard in shards) / texts if texts else None,
        "last_token_step": sum(shard.last_token_steps for shard in shards) / texts if texts else None,
    }
