"""TEST DOUBLE: a rank's share of a layer, which for one rank is the layer. Unknown arguments are errors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from neuronx_distributed.parallel_layers.parallel_state import get_tensor_model_parallel_group


class _Linear(nn.Module):
    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        gather_output: bool = True,
        input_is_parallel: bool = False,
        dtype: torch.dtype = torch.float32,
        pad: bool = False,
        tensor_model_parallel_group: Any = None,
        reduce_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.gather_output = gather_output
        self.tensor_parallel_group = tensor_model_parallel_group or get_tensor_model_parallel_group()
        if pad:
            self.pad_size = 0  # an output is padded to a multiple of the ranks
        self.weight = nn.Parameter(torch.empty(output_size, input_size, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(output_size, dtype=dtype)) if bias else None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(inputs, self.weight, self.bias)


class ColumnParallelLinear(_Linear): ...


class RowParallelLinear(_Linear): ...


class ParallelEmbedding(nn.Module):
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        dtype: torch.dtype = torch.float32,
        shard_across_embedding: bool = False,
        pad: bool = False,
    ) -> None:
        super().__init__()
        self.padding_idx = padding_idx
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim, dtype=dtype))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(ids.long(), self.weight, self.padding_idx)


class SPMDRank(nn.Module):
    def __init__(self, world_size: int) -> None:
        super().__init__()
        if world_size != 1:
            raise NotImplementedError(f"[neuron test double] tensor parallelism: {world_size} ranks, not 1")
        self.rank = nn.Parameter(torch.zeros(1, dtype=torch.int32), requires_grad=False)

    def get_rank(self) -> torch.Tensor:
        return self.rank
