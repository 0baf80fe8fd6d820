"""What every graph of the double does first and last: refuse, fail and log, as operations that a saved graph calls."""

from __future__ import annotations

import json
import os
import signal
import time

import sdk_double
import torch


def register() -> None:
    """`neuron_double::begin` and `::end`, once per process: a saved graph needs them to be loaded, as a NEFF would."""
    if not hasattr(torch, "_neuron_double_library"):
        library = torch.library.Library("neuron_double", "DEF")
        library.define("begin(Tensor[] inputs, str compiled) -> Tensor[]")
        library.define("end(Tensor output, Tensor first) -> Tensor")
        library.impl("begin", begin, "CompositeExplicitAutograd")
        library.impl("end", end, "CompositeExplicitAutograd")
        torch._neuron_double_library = library  # type: ignore[attr-defined]


def begin(inputs: list[torch.Tensor], compiled: str) -> list[torch.Tensor]:
    """First operation of every graph: refuses what it was not compiled for, and fails as the environment says."""
    expected = json.loads(compiled)
    found = [[list(each.shape), str(each.dtype)] for each in inputs]
    if found != expected:
        raise RuntimeError(f"[neuron test double] the graph takes {expected} and nothing else, not {found}")
    shape = sdk_double.shape_of(expected[0][0])
    how = sdk_double.fault("EXECUTE", shape) if bool(at_fault(inputs[0]).any()) else None
    sdk_double.log("execute", shape=shape, fault=how)
    time.sleep(json.loads(sdk_double.setting("SLOW") or "{}").get(shape, 0.0))
    if how == "raise":
        raise RuntimeError("[neuron test double] nrt_execute status=1 message=Failure")
    if how == "abort":
        os.abort()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return [each.clone() for each in inputs]


def end(output: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """Last operation of every graph, on each output (rows, ...)."""
    output = output.clone()
    if sdk_double.fault("EXECUTE", sdk_double.shape_of(list(first.shape))) == "nan" and output.is_floating_point():
        output[at_fault(first)] = float("nan")
    return output


def at_fault(first: torch.Tensor) -> torch.Tensor:
    """Which rows of the first input are at fault, bool (rows,)."""
    token = sdk_double.setting("TOKEN")
    rows = torch.ones(first.shape[0], dtype=torch.bool)
    return rows if token is None else (first == int(token)).reshape(first.shape[0], -1).any(dim=1)
