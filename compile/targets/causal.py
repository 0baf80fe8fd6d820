"""The PyTorch causal language model behind every decoder target, and what its attention looks at."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from compile.errors import ModelError
from compile.lean_imports import transformers_package
from compile.model import read_json
from compile.shapes import Shape
from compile.targets.encoders import quiet

SLOTS = (8, 16, 32, 64)
SLOT_POSITIONS = 1 << 14
"""Positions of all slots together, above which a decode step is bound by reading the cache."""


def stateless_layer() -> Any:
    """A cache layer class of transformers for traced graphs: the cache is an argument of the graph, not kept here."""
    transformers_package()
    from transformers.cache_utils import CacheLayerMixin

    class StatelessLayer(CacheLayerMixin):  # type: ignore[misc]
        is_compileable = is_sliding = False

        def lazy_initialization(self, key_states: Any) -> None: ...

        def get_mask_sizes(self, cache_position: Any) -> tuple[int, int]:
            return 0, 0

        def get_seq_length(self) -> int:
            return 0

        def get_max_cache_shape(self) -> int:
            return -1

    return StatelessLayer


def load_causal(model_dir: Path, precision: str = "fp32") -> Any:
    """A causal language model in eval mode, on one thread. Raises ModelError, also when weights are missing."""
    import safetensors
    import torch

    transformers = transformers_package()
    torch.set_num_threads(1)
    try:
        with quiet():
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                model_dir,
                dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[precision],
                output_loading_info=True,
                local_files_only=True,
                attn_implementation="sdpa",
            )
    except (OSError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise ModelError(f"{model_dir} cannot be loaded as a causal language model: {error}") from error
    if report["missing_keys"]:
        raise ModelError(f"{model_dir} has no weights for: {', '.join(sorted(report['missing_keys'])[:8])}")
    needed = {"position_ids", "past_key_values", "logits_to_keep"}
    lacking = sorted(needed - set(inspect.signature(model.forward).parameters))
    if lacking:
        raise ModelError(f"{model_dir}: {type(model).__name__} takes no {', '.join(lacking)}, which slots need")
    return model.eval()


def attention_windows(model_dir: Path) -> tuple[int | None, ...]:
    """Per layer, how many last positions its attention sees; None where it sees all.

    Raises ModelError for kinds of layers whose state is not a cache of keys and values.
    """
    transformers = transformers_package()
    try:
        with quiet():
            config = transformers.AutoConfig.from_pretrained(model_dir, local_files_only=True).get_text_config()
    except (OSError, ValueError) as error:
        raise ModelError(f"{model_dir} cannot be read as a language model: {error}") from error
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = ["full_attention" if window is None else "sliding_attention"] * config.num_hidden_layers
    unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if unknown:
        raise ModelError(f"{model_dir} has layers of {', '.join(unknown)}; slots hold full and sliding attention only")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def rope_limit(model_dir: Path) -> int | None:
    """Tokens above which the rotary embedding follows the longest row of the batch; None where it never does."""
    config = read_json(model_dir / "config.json")
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) not in {"dynamic", "longrope"}:
        return None
    original = scaling.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    return int(original or config["max_position_embeddings"])


def decoder_candidates(max_length: int, new_tokens: int, align: int = 16) -> list[Shape]:
    """Shapes worth considering on a CPU core: every aligned prompt length, with slots while the cache is small."""
    lengths = sorted({*range(align, max_length, align), max_length})
    return [
        Shape(length=length, batch=slots)
        for length in lengths
        for slots in SLOTS
        if slots == SLOTS[0] or slots * (length + new_tokens) <= SLOT_POSITIONS
    ]
