"""Settings of the Neuron toolchain. Light: job files are validated with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AutoCast = Literal["none", "matmul", "all"]
AutoCastType = Literal["bf16", "fp16", "tf32"]
InstanceType = Literal["inf2", "trn1", "trn1n", "trn2"]

CORE_BYTES: dict[InstanceType, int] = {"inf2": 16 << 30, "trn1": 16 << 30, "trn1n": 16 << 30, "trn2": 24 << 30}
"""Device memory per NeuronCore that a process sees: on Inf2 and Trn1 32 GiB for 2, on Trn2 96 GiB for 4 of them."""


@dataclass(frozen=True, slots=True)
class NeuronSettings:
    """Options of the targets `neuron`; see optimum.exporters.neuron.main_export and NeuronModelForCausalLM."""

    instance_type: InstanceType = "inf2"
    """Kind of host that the code is compiled for; another kind refuses it."""
    auto_cast: AutoCast | None = None
    """Which operations leave fp32; None follows the job's precision (fp32: none, bf16: matmul)."""
    auto_cast_type: AutoCastType | None = None
    """What they are cast to; None is bf16."""
    optlevel: Literal["1", "2", "3"] = "2"
    inline_weights_to_neff: bool = True
    compile_timeout_s: float = 3600.0
    """A compiler that takes longer for one graph is ended."""
    tensor_parallel_size: int = 1
    """NeuronCores that one copy of a decoder spans."""
    on_device_sampling: bool = False
    """Of decoders: faster, but texts then depend on their company, so P2 is not promised."""

    @property
    def memory_bytes(self) -> int:
        """Device memory of the cores that one copy spans."""
        return CORE_BYTES[self.instance_type] * self.tensor_parallel_size

    def casts(self, precision: str) -> tuple[str, str | None]:
        """(auto_cast, auto_cast_type) of an encoder at precision bf16 or fp32; a type only where something is cast."""
        auto_cast = self.auto_cast or ("none" if precision == "fp32" else "matmul")
        return auto_cast, None if auto_cast == "none" else self.auto_cast_type or "bf16"

    def contradiction(self, precision: str) -> str | None:
        """How these settings contradict a job's precision, in a sentence that says what to change; None if they don't.

        `auto` is never contradicted: it is fp32 where nothing is cast, else what the tolerances call bf16.
        """
        if self.auto_cast == "none" and self.auto_cast_type is not None:
            return f"auto_cast: none casts nothing to {self.auto_cast_type}; drop auto_cast_type, or cast matmul or all"
        if precision == "fp32" and (self.auto_cast not in (None, "none") or self.auto_cast_type is not None):
            return "precision fp32 casts nothing; remove auto_cast and auto_cast_type, or set precision: auto"
        if precision == "bf16" and (self.auto_cast == "none" or self.auto_cast_type not in (None, "bf16")):
            found = self.auto_cast_type if self.auto_cast != "none" else "nothing (auto_cast: none)"
            return f"precision bf16 casts to bf16, not to {found}; set precision: auto, or remove the setting"
        return None
