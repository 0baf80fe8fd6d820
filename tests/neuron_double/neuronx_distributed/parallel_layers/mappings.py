"""TEST DOUBLE: what one rank has is all there is."""

from typing import Any

import torch


def _gather_along_dim(tensor: torch.Tensor, partition_dim: int, **_: Any) -> torch.Tensor:
    return tensor
