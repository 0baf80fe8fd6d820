"""TEST DOUBLE: over the vocabulary of all ranks, which is that of the one."""

from typing import Any

import torch


def topk(
    tensor: torch.Tensor,
    k: int,
    dim: int,
    gather_dim: int | None = None,
    process_group: Any = None,
    stages: int = 1,
    rank_id: Any = None,
) -> Any:
    return torch.topk(tensor, k, dim=dim)
