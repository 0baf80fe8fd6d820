"""About how much device memory a graph takes, from the model's config: what a plan's memory budget is held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compile.model import read_json, weight_files
from compile.shapes import Shape

_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}
_FP32 = 4
_ACTIVATIONS = 6
"""Arrays of the hidden size that one layer holds at once: input, query, key, value, context and output."""


def graph_bytes(model_dir: Path, shape: Shape, precision: str, new_tokens: int = 0) -> int:
    """Weights at the precision, one layer's activations, and for decoders the cache of every slot. An estimate.

    Raises ModelError. Sizes that the config does not name count as those of a small model: an estimate, not a promise.
    """
    config = read_json(model_dir / "config.json")
    width = _BYTES.get(precision, _FP32)
    hidden = _number(config, ("hidden_size", "n_embd", "dim"), 768)
    heads = _number(config, ("num_attention_heads", "n_head", "n_heads"), 12)
    inner = _number(config, ("intermediate_size", "n_inner", "hidden_dim"), 4 * hidden)
    weights = sum(path.stat().st_size for path in weight_files(model_dir)) * width // _stored_width(config)
    per_token = (_ACTIVATIONS * hidden + inner) * width
    scores = shape.batch * heads * shape.length * shape.length * _FP32  # softmax stays in fp32
    cache = _cache_bytes(config, hidden, heads, width) * shape.batch * (shape.length + new_tokens) if new_tokens else 0
    return weights + shape.slot_tokens * per_token + scores + cache


def _cache_bytes(config: dict[str, Any], hidden: int, heads: int, width: int) -> int:
    """Keys and values of one position in all layers."""
    layers = _number(config, ("num_hidden_layers", "n_layer", "n_layers"), 12)
    kept = _number(config, ("num_key_value_heads",), heads)
    size = _number(config, ("head_dim",), hidden // heads)
    return 2 * layers * kept * size * width


def _stored_width(config: dict[str, Any]) -> int:
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "float32")
    return 2 if "16" in dtype else _FP32


def _number(config: dict[str, Any], names: tuple[str, ...], default: int) -> int:
    return next((int(config[name]) for name in names if isinstance(config.get(name), int)), default)
