"""TEST DOUBLE: mixtures of experts are not modelled; optimum-neuron imports their names with every decoder."""

from typing import Any


class NotModelled:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"[neuron test double] mixture of experts: {type(self).__name__}")
