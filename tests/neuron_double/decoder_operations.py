"""What a decoder of the double does when its weights go to the cores, as an operation that the saved graphs call."""

from __future__ import annotations

import sdk_double
import torch


def register() -> None:
    """`neuron_double::load`, once per process."""
    if not hasattr(torch, "_neuron_double_decoders"):
        library = torch.library.Library("neuron_double", "FRAGMENT")
        library.define("load(Tensor[] parts) -> int")  # without a result that is used TorchScript would drop it
        library.impl("load", load, "CompositeExplicitAutograd")
        torch._neuron_double_decoders = library  # type: ignore[attr-defined]


def load(parts: list[torch.Tensor]) -> int:
    """1 when weights and cache are on the cores that this process sees. Raises RuntimeError when they do not fit."""
    cores = sdk_double.check_host()
    sdk_double.check_memory(sum(each.numel() * each.element_size() for each in parts))
    sdk_double.log("load", cores=cores)
    return 1
