"""TEST DOUBLE: functions that build HLO, which nothing here can run. Those of the decoders are replaced by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def nki_jit(*_: Any, **__: Any) -> Callable[[Any], Any]:
    return lambda kernel: kernel


def _dynamic_update_slice(tensor: torch.Tensor, update: torch.Tensor, *starts: torch.Tensor) -> torch.Tensor:
    """XLA's operation, where only the first start is not 0, as in the decoders' cache."""
    tensor = tensor.clone()
    start = starts[0].long() if starts else torch.zeros((), dtype=torch.long)
    rows = start + torch.arange(update.shape[0])
    written = tensor.index_select(0, rows)
    written[tuple(slice(0, size) for size in update.shape)] = update
    return tensor.index_copy(0, rows, written)


_REPLACED = {
    "rand_like": torch.rand_like,
    "fill_prefix": _dynamic_update_slice,
    "xla_dynamic_update_slice": _dynamic_update_slice,
}


def xla_hlo_call(function: Callable[..., Any]) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"[neuron test double] HLO of {function.__name__}")

    return _REPLACED.get(function.__name__, refused)


class RmsNorm:
    @staticmethod
    def apply(inputs: torch.Tensor, weight: torch.Tensor, eps: float, dim: int) -> torch.Tensor:
        return inputs * torch.rsqrt(inputs.pow(2).mean(dim, keepdim=True) + eps) * weight
