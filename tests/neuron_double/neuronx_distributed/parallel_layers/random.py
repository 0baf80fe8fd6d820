"""TEST DOUBLE."""


def model_parallel_xla_manual_seed(seed: int) -> None:
    """Nothing draws while a graph is traced."""
