"""Converts a causal language model to two OpenVINO graphs without state: prefill, and one step of all slots.

A step reads the caches where they lie. Putting its new keys and values into them first, and repeating them for every
query head, as transformers does, would copy all of them in every layer: of 64 slots more than ten times what is read.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compile.errors import CompileError
from compile.targets.causal import load_causal, stateless_layer
from compile.targets.encoders import quiet
from compile.targets.openvino import LOWEST, openvino_package
from compile.targets.openvino_gates import keep_gates_apart

GRAPHS = ("prefill", "decode")
ATTENTION = "lengthwise_past_and_here"
"""Name under which transformers finds a PastAttention."""


def convert_slots(model_dir: Path, directory: Path, windows: Sequence[int | None], rope_limit: int | None) -> Path:
    """Write `prefill` and `decode`, fp32, into `directory`, all of it or nothing; returns it. Idempotent.

    prefill: int64 ids (rows, length) and lengths (rows,) -> logits after each prompt (rows, vocab), and per layer keys
    and values (rows, heads, length, size). decode: ids (slots, 1), positions (slots,) and caches (slots, heads,
    positions, size) -> logits (slots, vocab), and per layer new keys and values (slots, heads, 1, size).
    Raises CompileError.
    """
    if all((directory / f"{graph}.bin").is_file() for graph in GRAPHS):
        return directory
    if rope_limit is not None:
        raise CompileError(
            f"openvino-slots: {model_dir} has a rotary embedding that follows the longest row of a batch, so that rows "
            "would depend on their neighbours"
        )
    openvino = openvino_package()
    model = load_causal(model_dir)
    layers = len(windows)
    partial = directory.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    attention = PastAttention()
    prefill, decode, examples = _modules(model, windows, attention)
    try:
        with quiet():
            for name, module in zip(GRAPHS, (prefill, decode), strict=True):
                # Attention of a whole prompt is transformers' own; of a step it is ours.
                model.set_attn_implementation("sdpa" if name == "prefill" else ATTENTION)
                graph = openvino.convert_model(module, example_input=examples[name])
                wanted = 2 if name == "prefill" else 2 + 2 * layers
                if len(graph.inputs) != wanted:
                    raise CompileError(f"openvino-slots: {name} has {len(graph.inputs)} inputs instead of {wanted}")
                if name == "decode" and attention.layers != layers:
                    raise CompileError(f"openvino-slots: {type(model).__name__} has attention of its own making")
                for port, example in zip(graph.inputs[2:], examples[name].get("past", []), strict=True):
                    shape = [-1, example.shape[1], -1, example.shape[3]]
                    port.node.set_partial_shape(openvino.PartialShape(shape))
                keep_gates_apart(graph)
                openvino.save_model(graph, partial / f"{name}.xml", compress_to_fp16=False)
    except RuntimeError as error:
        raise CompileError(f"openvino-slots cannot convert {model_dir}: {error}") from error
    partial.rename(directory)
    return directory


def _layer_class() -> Any:
    """A cache layer that keeps what comes in, which is all that attention gets of it."""

    class Layer(stateless_layer()):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.is_initialized = True

        def update(self, key_states: Any, value_states: Any, cache_kwargs: Any = None) -> tuple[Any, Any]:
            self.keys, self.values = key_states, value_states
            return key_states, value_states

    return Layer


def _masks(seen: Any, positions: Any, columns: Any, windows: Sequence[int | None]) -> Any:
    """Additive masks (rows, 1, places, columns) of what is `seen`, by kind of attention where there are several."""
    import torch

    kinds = {}
    for window in set(windows):
        near = seen if window is None else seen & (columns > positions - window)
        mask = torch.zeros((), dtype=torch.float32).masked_fill(~near, LOWEST)
        kinds["full_attention" if window is None else "sliding_attention"] = mask
    return kinds if len(kinds) > 1 else next(iter(kinds.values()))


def _prefill(model: Any, windows: Sequence[int | None]) -> Any:
    import torch
    from transformers.cache_utils import Cache

    new_layer = _layer_class()

    class Prefill(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, lengths: Any) -> Any:
            columns = torch.arange(input_ids.shape[1])
            positions = columns[None].expand(input_ids.shape[0], -1)
            places = positions[:, None, :, None]
            cache = Cache(layers=[new_layer() for _ in windows])
            kept = self.model(
                input_ids=input_ids,
                position_ids=positions,
                attention_mask=_masks(columns <= places, places, columns, windows),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=lengths - 1,
            ).logits
            rows = torch.arange(input_ids.shape[0])
            return (kept[rows, rows], *[state for layer in cache.layers for state in (layer.keys, layer.values)])

    return Prefill().eval()


class PastAttention:
    """The attention of a step, as transformers calls it for each layer: to the caches, and to the new token apart.

    It holds no model: transformers keeps what is registered as long as the process lives.
    """

    def __init__(self) -> None:
        from transformers import AttentionInterface

        self.past: Any = ()
        """Keys and values of the layers in turn."""
        self.layers = 0
        """So many have asked in this step."""
        AttentionInterface.register(ATTENTION, self)

    def __call__(
        self, module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float | None = None, **_: Any
    ) -> tuple[Any, None]:
        self.layers += 1
        keys, values = self.past[2 * module.layer_idx : 2 * module.layer_idx + 2]
        return _attend(query, key, value, keys, values, mask, scaling), None


def _decode(model: Any, windows: Sequence[int | None], attention: PastAttention) -> Any:
    import torch
    from transformers.cache_utils import Cache

    new_layer = _layer_class()

    class Decode(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, positions: Any, past: Any) -> Any:
            attention.past, attention.layers = past, 0
            columns, places = torch.arange(past[0].shape[2]), positions[:, None, None, None]
            cache = Cache(layers=[new_layer() for _ in windows])
            logits = self.model(
                input_ids=input_ids,
                position_ids=positions[:, None],
                attention_mask=_masks(columns < places, places, columns, windows),
                past_key_values=cache,
                use_cache=True,
            ).logits
            return (logits[:, 0], *[state for layer in cache.layers for state in (layer.keys, layer.values)])

    return Decode().eval()


def _attend(query: Any, key: Any, value: Any, keys: Any, values: Any, mask: Any, scaling: float | None) -> Any:
    """Attention of one new token per slot to its past, which `mask` shows, and to itself: (slots, 1, heads, size).

    query (slots, heads, 1, size), key and value (slots, cache heads, 1, size), keys and values (slots, cache heads,
    positions, size), mask additive (slots, 1, 1, positions). A softmax over both parts, whose sums are taken apart.
    """
    import torch

    slots, heads, _, size = query.shape
    shared = key.shape[1]
    scaled = (query * (size**-0.5 if scaling is None else scaling)).reshape(slots, shared, heads // shared, size)
    past = scaled @ keys.transpose(-1, -2) + mask
    here = (scaled * key).sum(-1, keepdim=True)
    weights = torch.softmax(torch.cat([past, here], -1), -1)
    found = weights[..., :-1] @ values + weights[..., -1:] * value
    return found.reshape(slots, heads, 1, size).transpose(1, 2)


def _modules(model: Any, windows: Sequence[int | None], attention: PastAttention) -> tuple[Any, Any, dict[str, Any]]:
    """The two functions as torch modules, and tensors to trace them with."""
    import torch

    ids, lengths = torch.arange(14).reshape(2, 7) % 5 + 1, torch.tensor([7, 4])
    prefill = _prefill(model, windows)
    with torch.inference_mode():
        states = prefill(ids, lengths)[1:]
    past = [torch.nn.functional.pad(state, (0, 0, 0, 4)).clone() for state in states]
    examples = {
        "prefill": {"input_ids": ids, "lengths": lengths},
        "decode": {"input_ids": ids[:, :1], "positions": lengths, "past": past},
    }
    return prefill, _decode(model, windows, attention), examples
