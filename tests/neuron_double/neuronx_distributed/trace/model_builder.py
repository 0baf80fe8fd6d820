"""TEST DOUBLE: one traced graph per entry, each for its shapes alone, over one set of weights and one cache."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import decoder_operations
import sdk_double
import torch
from safetensors.torch import save_file
from torch_neuronx import guarded, run_compiler

decoder_operations.register()

CACHE = ".past_key_values."
"""In the names of parameters that are state, not weights."""


class BaseModelInstance:
    """What optimum-neuron derives its decoders from; it overrides all of it."""


class ModelBuilder:
    """Traces, and cuts checkpoints into one rank's share."""

    def __init__(
        self,
        router: Any,
        tp_degree: int,
        checkpoint_loader: Callable[[], dict[str, torch.Tensor]] | None = None,
        pp_degree: int = 1,
        ep_degree: int = 1,
        **_: Any,
    ) -> None:
        if (tp_degree, pp_degree, ep_degree) != (1, 1, 1):
            raise NotImplementedError(f"[neuron test double] parallelism: {(tp_degree, pp_degree, ep_degree)}")
        self._load_checkpoint = checkpoint_loader
        self._graphs: dict[str, tuple[Any, tuple[torch.Tensor, ...], str | None]] = {}

    def add(
        self,
        key: str,
        model_instance: Any,
        example_inputs: list[tuple[torch.Tensor, ...]],
        compiler_args: str | None = None,
        priority_model_idx: int | None = None,
    ) -> ModelBuilder:
        (example,) = example_inputs  # optimum-neuron has one bucket per graph
        self._graphs[key] = (model_instance, example, compiler_args)
        return self

    @torch.no_grad()
    def trace(self, initialize_model_weights: bool = True) -> torch.jit.ScriptModule:
        if initialize_model_weights:
            raise NotImplementedError("[neuron test double] weights are loaded by `initialize`")
        shared: dict[str, torch.Tensor] = {}
        graphs = {}
        for key, (instance, example, compiler_args) in self._graphs.items():
            run_compiler(compiler_args, sdk_double.shape_of(list(example[0].shape)))
            instance.load_module()
            module, aliases = instance.get(0)
            module.requires_grad_(False)
            for name, parameter in module.named_parameters():
                parameter.data = shared.setdefault(name, parameter.data.zero_())
                assert parameter.shape == shared[name].shape, name
            with _traceable():
                inner = torch.jit.trace(_Stateful(module, aliases), example, check_trace=False)
            graphs[key] = guarded(inner, example)
        for tensor in shared.values():
            tensor.zero_()  # tracing has run the graphs
        return _runtime(graphs, list(shared))

    def shard_checkpoint(self, serialize_path: str | None = None) -> list[dict[str, torch.Tensor]]:
        assert self._load_checkpoint is not None
        checkpoint = self._load_checkpoint()
        instance = next(iter(self._graphs.values()))[0]
        instance.load_module()
        for name, child in instance.module.named_modules():
            if hasattr(child, "preshard_hook"):
                child.preshard_hook(checkpoint, f"{name}.weight")
        wanted = {name: each for name, each in instance.module.named_parameters() if CACHE not in name}
        missing = sorted(set(wanted) - set(checkpoint))
        if missing:
            raise KeyError(f"[neuron test double] the checkpoint has no {', '.join(missing[:5])}")
        share = {name: checkpoint[name].to(each.dtype).contiguous().clone() for name, each in wanted.items()}
        if serialize_path:
            os.makedirs(serialize_path, exist_ok=True)
            save_file(share, Path(serialize_path) / "tp0_sharded_checkpoint.safetensors")
        return [share]


class _Stateful(torch.nn.Module):
    """A decoder whose aliased outputs go back into the parameters that they are aliases of: state on the device."""

    def __init__(self, module: torch.nn.Module, aliases: dict[torch.nn.Parameter, int]) -> None:
        super().__init__()
        self.module = module
        self._aliases = aliases

    def forward(self, *inputs: torch.Tensor) -> Any:
        outputs = self.module(*inputs)
        for parameter, index in self._aliases.items():
            parameter.copy_(outputs[index])
        (kept,) = (each for index, each in enumerate(outputs) if index not in set(self._aliases.values()))
        return kept


class _Holder(torch.nn.Module):
    """Carries modules into TorchScript; methods are defined after scripting."""

    def __init__(self, **modules: torch.nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)


class _Runtime(_Holder):
    def __init__(self, **modules: torch.nn.Module) -> None:
        super().__init__(**modules)
        self.ready = torch.zeros(1, dtype=torch.int32)


def _runtime(graphs: dict[str, Any], names: list[str]) -> torch.jit.ScriptModule:
    """What the SDK saves as model.pt: `nxd_model.initialize(weights, rank)`, then `forward`, which picks the graph."""
    runtime = torch.jit.script(_Runtime(**graphs))
    first = next(iter(graphs))
    weights = [name for name in names if CACHE not in name]
    runtime.define(
        "def initialize(self, weights: List[Dict[str, Tensor]], start_rank: Tensor):\n"
        "    share = weights[0]\n"
        f"    loaded = torch.ops.neuron_double.load([{', '.join(_path(first, name) for name in names)}])\n"
        + "".join(f"    {_path(first, name)}.copy_(share['{name}'])\n" for name in weights)
        + "".join(f"    {_path(first, name)}.zero_()\n" for name in names if CACHE in name)
        + "    self.ready.fill_(loaded)\n"
    )
    inputs = "ids, positions, seq_ids, sampling_params"
    graph_of = "".join(f"    if ids.shape == {list(_ids_shape(graph))}:\n        return self.{key}({inputs})\n"
                       for key, graph in graphs.items())  # fmt: skip
    runtime.define(
        f"def run(self, {inputs}) -> Tensor:\n"
        "    if self.ready.item() == 0:\n"
        "        raise RuntimeError('[neuron test double] no weights are loaded')\n"
        + graph_of
        + "    raise RuntimeError('[neuron test double] no graph was compiled for input_ids ' + str(ids.shape))\n"
    )
    model = torch.jit.script(_Holder(nxd_model=runtime))
    model.define(f"def forward(self, {inputs}) -> Tensor:\n    return self.nxd_model.run({inputs})\n")
    return model


def _ids_shape(graph: Any) -> list[int]:
    shape: list[int] = json.loads(graph.compiled)[0][0]
    return shape


def _path(graph: str, name: str) -> str:
    """A parameter, as TorchScript writes it from the runtime."""
    found = f"self.{graph}.inner.module"
    for part in name.split("."):
        found = f'getattr({found}, "{part}")' if part.isdigit() else f"{found}.{part}"
    return found


@contextlib.contextmanager
def _traceable() -> Iterator[None]:
    """torch.jit.trace cannot record a bool where an operation takes a number: masks and the sampler give it one."""
    full, index_fill_ = torch.full, torch.Tensor.index_fill_

    def filled(size: Any, value: Any, **kwargs: Any) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bool, **kwargs) if value is True else full(size, value, **kwargs)

    def index_filled(self: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> torch.Tensor:
        return index_fill_(self, dim, index, int(value))

    torch.full, torch.Tensor.index_fill_ = filled, index_filled  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.full, torch.Tensor.index_fill_ = full, index_fill_  # type: ignore[method-assign]
