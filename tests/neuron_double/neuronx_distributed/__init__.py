"""TEST DOUBLE of neuronx_distributed: one tensor-parallel rank, on a CPU. More ranks are refused by name."""

from neuronx_distributed import parallel_layers, trace

__all__ = ["parallel_layers", "trace"]
