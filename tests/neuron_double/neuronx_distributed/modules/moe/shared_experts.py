"""TEST DOUBLE: a name."""

from neuronx_distributed.modules.moe.not_modelled import NotModelled


class SharedExperts(NotModelled): ...
