"""TEST DOUBLE of neuronx_distributed: what the export of encoders imports."""

from neuronx_distributed import parallel_layers, trace

__all__ = ["parallel_layers", "trace"]
