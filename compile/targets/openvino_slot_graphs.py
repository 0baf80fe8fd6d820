"""Converts a causal language model to two OpenVINO graphs without state: prefill, and one step of all slots."""

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
    prefill, decode, examples = _modules(model, windows)
    try:
        with quiet():
            for name, module in zip(GRAPHS, (prefill, decode), strict=True):
                graph = openvino.convert_model(module, example_input=examples[name])
                wanted = 2 if name == "prefill" else 2 + 2 * layers
                if len(graph.inputs) != wanted:
                    raise CompileError(f"openvino-slots: {name} has {len(graph.inputs)} inputs instead of {wanted}")
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
    """A cache layer that keeps what comes in; attention sees it, or the past with it put in at each row's position."""
    import torch

    class Layer(stateless_layer()):  # type: ignore[misc]
        def __init__(self, past: Any = None, here: Any = None) -> None:
            super().__init__()
            self.past, self.here = past, here
            self.is_initialized = True

        def update(self, key_states: Any, value_states: Any, cache_kwargs: Any = None) -> tuple[Any, Any]:
            self.keys, self.values = key_states, value_states
            if self.past is None:
                return key_states, value_states
            keys, values = self.past
            return torch.where(self.here, key_states, keys), torch.where(self.here, value_states, values)

    return Layer


def _masks(positions: Any, columns: Any, windows: Sequence[int | None]) -> Any:
    """See TorchDecoder._masks: additive (rows, 1, places, columns), by kind of attention where there are several."""
    import torch

    places = positions[:, None, :, None]
    kinds = {}
    for window in set(windows):
        seen = columns <= places
        if window is not None:
            seen = seen & (columns > places - window)
        mask = torch.zeros((), dtype=torch.float32).masked_fill(~seen, LOWEST)
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
            cache = Cache(layers=[new_layer() for _ in windows])
            kept = self.model(
                input_ids=input_ids,
                position_ids=positions,
                attention_mask=_masks(positions, columns, windows),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=lengths - 1,
            ).logits
            rows = torch.arange(input_ids.shape[0])
            return (kept[rows, rows], *[state for layer in cache.layers for state in (layer.keys, layer.values)])

    return Prefill().eval()


def _decode(model: Any, windows: Sequence[int | None]) -> Any:
    import torch
    from transformers.cache_utils import Cache

    new_layer = _layer_class()

    class Decode(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, positions: Any, past: Any) -> Any:
            columns = torch.arange(past[0].shape[2])
            here = (columns[None] == positions[:, None])[:, None, :, None]
            cache = Cache(layers=[new_layer(past[at : at + 2], here) for at in range(0, len(past), 2)])
            logits = self.model(
                input_ids=input_ids,
                position_ids=positions[:, None],
                attention_mask=_masks(positions[:, None], columns, windows),
                past_key_values=cache,
                use_cache=True,
            ).logits
            return (logits[:, 0], *[state for layer in cache.layers for state in (layer.keys, layer.values)])

    return Decode().eval()


def _modules(model: Any, windows: Sequence[int | None]) -> tuple[Any, Any, dict[str, Any]]:
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
    return prefill, _decode(model, windows), examples
