"""Which causal language models optimum-neuron compiles faithfully, and how much of a NeuronCore's memory they take."""

from __future__ import annotations

from pathlib import Path

from compile.errors import ModelError
from compile.memory import graph_bytes
from compile.model import read_json
from compile.neuron_settings import NeuronSettings
from compile.shapes import Shape
from compile.targets.causal import attention_windows, rope_limit


def check_architecture(model_dir: Path) -> None:
    """Raises ModelError unless optimum-neuron has the architecture, and all that this model makes of it."""
    from optimum.neuron.models import auto_model

    config = read_json(model_dir / "config.json")
    model_type = str(config.get("model_type"))
    if not auto_model.has_neuron_model_class(model_type, "text-generation", "inference"):
        known = sorted(name for name, task, _ in auto_model._REGISTERED_NEURON_MODELS if task == "text-generation")
        raise ModelError(f"{model_dir} is a {model_type}; optimum-neuron generates with: {', '.join(known)}")
    windows = {window for window in attention_windows(model_dir) if window is not None}
    if windows:
        raise ModelError(
            f"{model_dir} has attention over the last {max(windows)} positions, and optimum-neuron's sees all of them; "
            "choose another model or target"
        )


def check_vocabulary(model_dir: Path, least: int) -> None:
    """Raises ModelError for a vocabulary that is smaller than what optimum-neuron's sampler looks at."""
    found = int(read_json(model_dir / "config.json")["vocab_size"])
    if found < least:
        raise ModelError(
            f"{model_dir} has {found} tokens, and optimum-neuron samples among the {least} best; set "
            "neuron.on_device_sampling: false"
        )


def check_sizes(model_dir: Path, shape: Shape, new_tokens: int) -> None:
    """Raises ModelError for a shape whose graphs would do something else than they should."""
    limit = rope_limit(model_dir)
    if limit is not None and shape.length + new_tokens > limit:
        raise ModelError(
            f"with {new_tokens} new tokens: this model changes all positions of a batch when one row passes {limit} "
            f"tokens, so that rows would depend on their neighbours; plan at most {limit}"
        )
    if shape.length < 2:
        raise ModelError("optimum-neuron takes a prompt of one token for a decode step; give shapes a length above 1")


def check_memory(model_dir: Path, shape: Shape, new_tokens: int, precision: str, settings: NeuronSettings) -> None:
    """Raises ModelError when a graph will not fit into the cores' memory: compiling would take minutes in vain."""
    needed, there = graph_bytes(model_dir, shape, precision, new_tokens), settings.memory_bytes
    if needed > there:
        raise ModelError(
            f"weights, cache and activations take about {needed / 2**30:.1f} GiB, and {settings.tensor_parallel_size} "
            f"NeuronCores of {settings.instance_type} have {there / 2**30:.0f}; give shapes fewer slots, or raise "
            "neuron.tensor_parallel_size"
        )
