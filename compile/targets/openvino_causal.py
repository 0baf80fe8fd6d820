"""Converts a causal language model to an OpenVINO graph with its cache inside, as OpenVINO GenAI expects it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from compile.errors import CompileError
from compile.targets.causal import load_causal, stateless_layer
from compile.targets.encoders import quiet
from compile.targets.openvino import openvino_package, saved_model
from compile.targets.openvino_gates import keep_gates_apart

XML = "openvino_model.xml"
INPUTS = ("input_ids", "attention_mask", "position_ids")


def convert_causal(model_dir: Path, directory: Path) -> Path:
    """Write the graph, fp32, into `directory`, all of it or nothing; returns it. Raises CompileError, ModelError.

    Inputs int64 (batch, new), (batch, past and new), (batch, new) and beam_idx int32 (batch,); output logits
    (batch, new, vocab). The cache of each layer is a state that grows along its third axis.
    """
    model = load_causal(model_dir)
    layers, heads, size = _cache_sizes(model)
    openvino = openvino_package()
    try:
        with quiet():
            graph = openvino.convert_model(_with_cache(model), example_input=_example(layers, heads, size))
        _name_ports(graph, layers, heads, size)
        _add_beam_index(graph)
        _make_stateful(graph, layers, heads, size)
        keep_gates_apart(graph)
    except RuntimeError as error:
        raise CompileError(f"openvino cannot convert {model_dir}: {error}") from error
    return saved_model(graph, directory, XML)


def _cache_sizes(model: Any) -> tuple[int, int, int]:
    """Layers, heads of keys and values, and their size, as one forward of the model shows them."""
    import torch

    with torch.inference_mode():
        layers = model(torch.tensor([[1, 2]]), use_cache=True).past_key_values.layers
    shapes = {tuple(state.shape) for layer in layers for state in (layer.keys, layer.values)}
    if len(shapes) != 1:
        raise CompileError(f"openvino: layers with caches of different sizes are not supported: {sorted(shapes)}")
    _, heads, _, size = shapes.pop()
    return len(layers), heads, size


def _example(layers: int, heads: int, size: int) -> dict[str, Any]:
    """Tensors to trace with: two rows with three past and two new tokens."""
    import torch

    ids = torch.tensor([[1, 2], [3, 4]])
    past = [torch.full((2, heads, 3, size), 0.1) for _ in range(2 * layers)]
    mask, positions = torch.ones(2, 5, dtype=torch.long), torch.tensor([[3, 4], [3, 4]])
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "past": past}


def _growing_layer() -> Any:
    """A cache layer that puts what comes in behind the past that it was made with."""
    import torch

    class GrowingLayer(stateless_layer()):  # type: ignore[misc]
        def __init__(self, keys: Any, values: Any) -> None:
            super().__init__()
            self.keys, self.values = keys, values
            self.is_initialized = True

        def update(self, key_states: Any, value_states: Any, cache_kwargs: Any = None) -> tuple[Any, Any]:
            self.keys = torch.cat([self.keys, key_states], -2)
            self.values = torch.cat([self.values, value_states], -2)
            return self.keys, self.values

    return GrowingLayer


def _with_cache(model: Any) -> Any:
    """The model as a function of its cache: forward(ids, mask, positions, past) -> logits and the grown cache."""
    import torch
    from transformers.cache_utils import Cache

    layer = _growing_layer()

    class WithCache(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: Any) -> Any:
            cache = Cache(layers=[layer(*past[at : at + 2]) for at in range(0, len(past), 2)])
            total, new = attention_mask.shape[1], input_ids.shape[1]
            # GenAI replaces attention and mask by its paged attention; other users of the graph need the mask.
            seen = torch.arange(total)[None, :] <= (torch.arange(new) + (total - new))[:, None]
            seen = seen[None, None] & (attention_mask[:, None, None, :] > 0)
            mask = torch.zeros((), dtype=torch.float32).masked_fill(~seen, torch.finfo(torch.float32).min)
            logits = self.model(
                input_ids=input_ids,
                position_ids=position_ids,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
            ).logits
            return (logits, *[state for kept in cache.layers for state in (kept.keys, kept.values)])

    return WithCache().eval()


def _states(layers: int, kind: str) -> list[str]:
    return [f"{kind}.{layer}.{name}" for layer in range(layers) for name in ("key", "value")]


def _name_ports(graph: Any, layers: int, heads: int, size: int) -> None:
    """Give inputs and outputs the names that GenAI looks for, and open their batch and length."""
    openvino = openvino_package()
    names = [*INPUTS, *_states(layers, "past_key_values")]
    if len(graph.inputs) != len(names):
        raise CompileError(f"openvino: the converted model has {len(graph.inputs)} inputs instead of {len(names)}")
    for port, name in zip(graph.inputs, names, strict=True):
        port.get_tensor().set_names({name})
        port.node.set_friendly_name(name)
        if name in INPUTS:
            port.node.set_partial_shape(openvino.PartialShape([-1, -1]))
            port.node.set_element_type(openvino.Type.i64)
        else:
            port.node.set_partial_shape(openvino.PartialShape([-1, heads, -1, size]))
    for port, name in zip(graph.outputs, ["logits", *_states(layers, "present")], strict=True):
        port.get_tensor().set_names({name})
    graph.validate_nodes_and_infer_types()


def _add_beam_index(graph: Any) -> None:
    """Let each row take its cache from any row, which is how GenAI recognises caches."""
    openvino = openvino_package()
    from openvino import opset13

    beams = opset13.parameter(name="beam_idx", dtype=openvino.Type.i32, shape=openvino.PartialShape([-1]))
    beams.output(0).get_tensor().add_names({"beam_idx"})
    graph.add_parameters([beams])
    for port in list(graph.inputs):
        if port.any_name.startswith("past_key_values"):
            consumers = port.get_target_inputs()
            gathered = opset13.gather(port, beams, opset13.constant(np.int64(0)))
            for consumer in consumers:
                consumer.replace_source_output(gathered.output(0))
    graph.validate_nodes_and_infer_types()


def _make_stateful(graph: Any, layers: int, heads: int, size: int) -> None:
    """Turn cache inputs and outputs into states that start empty."""
    from openvino import opset13
    from openvino._offline_transformations import apply_make_stateful_transformation

    pairs = dict(zip(_states(layers, "past_key_values"), _states(layers, "present"), strict=True))
    apply_make_stateful_transformation(graph, pairs)
    shape = opset13.shape_of(graph.input("input_ids"), output_type="i64")
    batch = opset13.gather(shape, opset13.constant(np.array([0], np.int64)), opset13.constant(np.int64(0)))
    for node in graph.get_ops():
        if node.get_type_name() == "ReadValue":
            rest = opset13.constant(np.array([heads, 0, size], np.int64))
            empty = opset13.broadcast(opset13.constant(np.float32(0)), opset13.concat([batch, rest], axis=0))
            node.set_arguments([empty.output(0)])
    graph.validate_nodes_and_infer_types()
