"""TEST DOUBLE: one rank."""

from typing import Any


class OneRank:
    """A process group, of which only the size is asked; none is ever initialised."""

    def size(self) -> int:
        return 1


def get_tensor_model_parallel_group(*_: Any, **__: Any) -> OneRank:
    return OneRank()


def get_kv_shared_group(*_: Any, **__: Any) -> Any:
    return None


def get_tensor_model_parallel_size() -> int:
    return 1


def get_tensor_model_parallel_rank() -> int:
    return 0


def model_parallel_is_initialized() -> bool:
    return True


def initialize_model_parallel(tensor_model_parallel_size: int = 1, **_: Any) -> None:
    if tensor_model_parallel_size != 1:
        raise NotImplementedError(f"[neuron test double] tensor parallelism: {tensor_model_parallel_size} ranks, not 1")
