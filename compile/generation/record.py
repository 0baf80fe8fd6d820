"""What the proof of a decoder adds to a parity record."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GenerationParity:
    """How a decoder was compared, and whether its texts depend on their company."""

    new_tokens: int
    """Per prompt."""
    logits_seen: bool
    """True: logits were compared at every position of the reference's text. False (an engine that shows none): the
    record's differences are how much the reference prefers its own choice to the engine's, given the engine's text."""
    independent: bool
    """Whether every prompt had the same result alone, in company and in another order: logits to the last bit where
    they are seen, else greedy and sampled tokens. Measured on these prompts; only a static path promises it."""
    promised: bool
    """Whether the target promises it; then an artifact that breaks it is refused."""
