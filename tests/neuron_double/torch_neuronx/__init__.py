"""TEST DOUBLE of torch_neuronx on a CPU: see sdk_double. Compiles nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import graph_operations
import sdk_double
import simulated_host
import torch

__version__ = sdk_double.VERSION
COMPILER = Path(sdk_double.__file__).parent / "bin" / "neuronx-cc"

graph_operations.register()
simulated_host.show_to_optimum_neuron()


class _Graph(torch.nn.Module):
    """A traced function between the two operations of the double; `forward` is defined after scripting."""

    def __init__(self, inner: Any, compiled: str) -> None:
        super().__init__()
        self.inner = inner
        self.compiled = compiled


def guarded(inner: Any, example: tuple[torch.Tensor, ...]) -> Any:
    """A ScriptModule that runs `inner`, which returns a tensor, a tuple or a dict of them, on exactly such inputs."""
    with torch.no_grad():
        outputs = inner(*example)
    compiled = json.dumps([[list(each.shape), str(each.dtype)] for each in example])
    graph = torch.jit.script(_Graph(inner, compiled))
    names = ", ".join(f"x{index}" for index in range(len(example)))
    inputs = ", ".join(f"xs[{index}]" for index in range(len(example)))
    if isinstance(outputs, torch.Tensor):
        result = "torch.ops.neuron_double.end(out, x0)"
    elif isinstance(outputs, dict):
        ended = [f"{name!r}: torch.ops.neuron_double.end(out[{name!r}], x0)" for name in outputs]
        result = f"{{{', '.join(ended)}}}"
    else:
        ended = [f"torch.ops.neuron_double.end(out[{index}], x0)" for index in range(len(outputs))]
        result = f"({', '.join(ended)},)"
    graph.define(
        f"def forward(self, {names}):\n"
        f"    xs = torch.ops.neuron_double.begin([{names}], self.compiled)\n"
        f"    out = self.inner({inputs})\n"
        f"    return {result}\n"
    )
    return graph


def run_compiler(compiler_args: str | list[str] | None, shape: str) -> None:
    """Count a compilation; where the environment asks for a fault, a real process `neuronx-cc` has it."""
    arguments = compiler_args.split() if isinstance(compiler_args, str) else list(compiler_args or ())
    sdk_double.compiler_flags(arguments)
    sdk_double.log("compile", shape=shape, arguments=arguments)
    if not sdk_double.fault("COMPILE", shape):
        return
    status = subprocess.run([sys.executable, str(COMPILER), "compile", shape, *arguments], check=False).returncode
    if status:  # as torch_neuronx says it
        raise RuntimeError(f"neuronx-cc failed with {status}")


def trace(
    func: Any,
    example_inputs: Any,
    *_: Any,
    input_output_aliases: Any = None,
    compiler_workdir: Any = None,
    compiler_args: str | list[str] | None = None,
    inline_weights_to_neff: bool = True,
    cpu_backend: bool | None = None,
) -> Any:
    """A graph for exactly the shapes and dtypes of the example. Weights stay in it either way."""
    if input_output_aliases:
        raise NotImplementedError("[neuron test double] input_output_aliases")
    if not cpu_backend and sdk_double.host() is None:
        raise RuntimeError("[neuron test double] no Neuron device: tracing needs cpu_backend=True")
    example = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    run_compiler(compiler_args, sdk_double.shape_of(list(example[0].shape)))
    with torch.no_grad():
        inner = torch.jit.trace(func.eval(), example, strict=False, check_trace=False)
    for parameter in inner.parameters():
        parameter.requires_grad_(False)
    return guarded(inner, example)


def dynamic_batch(model: Any) -> Any:
    """Not modelled: Lengthwise compiles static graphs only."""
    raise NotImplementedError("[neuron test double] dynamic_batch")


def move_trace_to_device(model: Any, device_id: int) -> None:
    """Of graphs whose weights are not in the NEFF."""
    sdk_double.log("move", device_id=device_id, cores=sdk_double.check_host())


def _set_neuron_cores(model: Any, start_nc: int = -1, nc_count: int = -1) -> None:
    """The moment at which a graph goes to its core."""
    cores = sdk_double.check_host()
    if start_nc + nc_count > len(cores):
        raise RuntimeError(f"[neuron test double] NRT_INVALID: core {start_nc + nc_count - 1} of {len(cores)} visible")
    sdk_double.check_memory(sum(each.numel() * each.element_size() for each in model.parameters()))
    sdk_double.log("load", cores=cores[start_nc : start_nc + nc_count])


experimental = SimpleNamespace(set_neuron_cores=_set_neuron_cores)


class DataParallel(torch.nn.Module):
    """A name that optimum-neuron imports."""
