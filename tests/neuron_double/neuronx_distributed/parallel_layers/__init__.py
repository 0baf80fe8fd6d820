"""TEST DOUBLE."""

from neuronx_distributed.parallel_layers import layers, mappings, pad, parallel_state, random, utils
from neuronx_distributed.parallel_layers.parallel_state import initialize_model_parallel

__all__ = ["initialize_model_parallel", "layers", "mappings", "pad", "parallel_state", "random", "utils"]
