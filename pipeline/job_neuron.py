"""The section `neuron` of a job file: what optimum-neuron is asked for, under its own names."""

from __future__ import annotations

from typing import Any, Literal

import pydantic
from pydantic import ConfigDict, Field

from compile.neuron_settings import AutoCast, AutoCastType, InstanceType, NeuronSettings


class Neuron(pydantic.BaseModel):
    """Only for target: neuron."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instance_type: InstanceType = Field("inf2", description="kind of host that is compiled for")
    auto_cast: AutoCast | None = Field(None, description="which operations leave fp32; default: as precision says")
    auto_cast_type: AutoCastType | None = Field(None, description="what they are cast to")
    optlevel: Literal["1", "2", "3"] = Field("2", description="of the compiler: 1 compiles fastest, 3 runs fastest")
    inline_weights_to_neff: bool = Field(True, description="false: weights lie beside the compiled graph")
    compile_timeout_minutes: float = Field(60, strict=True, gt=0, allow_inf_nan=False, description="for one graph")
    cores: Literal["throughput", "latency"] = Field(
        "throughput", description="one copy per core, or one copy over tensor_parallel_size cores"
    )
    tensor_parallel_size: int = Field(1, strict=True, ge=1, description="cores that one copy of a decoder spans")
    on_device_sampling: bool = Field(False, description="of decoders; texts then depend on their company")

    @pydantic.model_validator(mode="after")
    def _check(self) -> Neuron:
        if self.cores == "throughput" and self.tensor_parallel_size > 1:
            raise ValueError(
                f"tensor_parallel_size: {self.tensor_parallel_size} cores for one copy are cores: latency; "
                "cores: throughput is one copy per core"
            )
        return self

    @property
    def cores_per_copy(self) -> int:
        """Neighbouring NeuronCores that a worker leases."""
        return self.tensor_parallel_size if self.cores == "latency" else 1

    def settings(self) -> NeuronSettings:
        """What of it reaches the targets."""
        given = self.model_dump(exclude={"cores", "compile_timeout_minutes"})
        return NeuronSettings(**given, compile_timeout_s=self.compile_timeout_minutes * 60)

    def output_fields(self) -> dict[str, Any]:
        """What of it can change an output byte."""
        return self.model_dump(mode="json", exclude={"cores", "compile_timeout_minutes"})

    def of_decoders(self) -> list[str]:
        """Settings that were changed and mean nothing for an encoder, which runs on one core."""
        names = ("cores", "tensor_parallel_size", "on_device_sampling")
        return [name for name in names if getattr(self, name) != type(self).model_fields[name].default]
