"""TEST DOUBLE: over the vocabulary of all ranks, which is that of the one."""

from typing import Any

import torch


def argmax(tensor: torch.Tensor, dim: int, gather_dim: int, keepdim: bool = False, process_group: Any = None) -> Any:
    return torch.argmax(tensor, dim=dim, keepdim=keepdim)
