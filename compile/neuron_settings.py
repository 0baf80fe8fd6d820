"""Settings of the Neuron toolchain. Light: job files are validated with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AutoCast = Literal["none", "matmul", "all"]
AutoCastType = Literal["bf16", "fp16", "tf32"]
InstanceType = Literal["inf2", "trn1", "trn1n", "trn2"]


@dataclass(frozen=True, slots=True)
class NeuronSettings:
    """Options of the targets `neuron`; see optimum.exporters.neuron.main_export and NeuronModelForCausalLM."""

    instance_type: InstanceType = "inf2"
    """Kind of host that the code is compiled for; another kind refuses it."""
    auto_cast: AutoCast | None = None
    """Which operations leave fp32; None follows the job's precision (fp32: none, bf16: matmul)."""
    auto_cast_type: AutoCastType | None = None
    """What they are cast to; None follows the precision."""
    optlevel: Literal["1", "2", "3"] = "2"
    inline_weights_to_neff: bool = True
    tensor_parallel_size: int = 1
    """NeuronCores that one copy of a decoder spans."""
    on_device_sampling: bool = False
    """Of decoders: faster, but texts then depend on their company, so P2 is not promised."""
