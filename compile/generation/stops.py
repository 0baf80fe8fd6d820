"""When a text ends and which part of it is shown: end tokens, stop tokens and stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from compile.errors import ModelError
from compile.generation.sampling import Sampling
from compile.model import read_json


def eos_token_ids(model_dir: Path) -> tuple[int, ...]:
    """The tokens with which a model ends a text, as `generate` finds them: generation_config.json, else config.json.

    Raises ModelError when neither names one: every text would run to its limit.
    """
    for name in ("generation_config.json", "config.json"):
        found = read_json(model_dir / name).get("eos_token_id") if (model_dir / name).is_file() else None
        if found is not None:
            return tuple(int(token) for token in (found if isinstance(found, list) else [found]))
    raise ModelError(f"{model_dir}: neither generation_config.json nor config.json has an eos_token_id")


def finish_reason(
    sampling: Sampling, token_ids: Sequence[int], limit: int, decode: Callable[[Sequence[int]], str] | None
) -> str | None:
    """Why a text ends with the last of its new tokens, a key of FINISH_REASONS; None when it goes on.

    Stop strings are looked for in the visible text, so one that spans several tokens is found with the last of them.
    A text that begins with what the prompt ended on is not a match across the two.
    """
    last = token_ids[-1]
    if last in sampling.eos_token_id:
        return "stop"
    if last in sampling.stop_token_ids:
        return "stop_token"
    if sampling.stop_strings:
        if decode is None:
            raise ValueError("stop_strings need a function that decodes tokens; give TextRules one")
        text = decode(token_ids)
        if any(string in text for string in sampling.stop_strings):
            return "stop_string"
    return "length" if len(token_ids) >= limit else None


def visible_text(
    sampling: Sampling, token_ids: Sequence[int], reason: str, decode: Callable[[Sequence[int]], str]
) -> str:
    """The text of a completion: without the token that ended it, and cut where the first stop string begins."""
    if reason in {"stop", "stop_token"}:
        return decode(token_ids[:-1])
    text = decode(token_ids)
    if reason == "stop_string":
        starts = [text.find(string) for string in sampling.stop_strings]
        return text[: min(start for start in starts if start >= 0)]
    return text


def special_stops(strings: Sequence[str], special_tokens: dict[str, int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Stop strings that stay strings, and the ids of those that are special tokens, which no visible text holds."""
    ids = tuple(special_tokens[string] for string in strings if string in special_tokens)
    return tuple(string for string in strings if string not in special_tokens), ids
