"""The process that exports one shape of a causal language model by optimum-neuron: `python -m` of this, given JSON."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

from compile.lean_imports import transformers_package
from compile.targets.neuron_compiler import begin_export
from compile.targets.neuron_host import is_double, sdk_versions


@dataclass(frozen=True, slots=True)
class DecoderExport:
    """What to export. The names of the settings are those of NeuronModelForCausalLM.get_neuron_config."""

    model_dir: str
    out_dir: str
    instance_type: str
    batch_size: int
    sequence_length: int
    max_context_length: int
    tensor_parallel_size: int
    on_device_sampling: bool
    dtype: str
    """float32 or bfloat16, of weights, cache and graphs; optimum-neuron takes it from the model's config."""

    def neuron_config(self) -> dict[str, Any]:
        """What the export's neuron_config.json says of it."""
        return {
            "batch_size": self.batch_size,
            "sequence_length": self.sequence_length,
            "max_context_length": self.max_context_length,
            "tp_degree": self.tensor_parallel_size,
            "on_device_sampling": self.on_device_sampling,
            "torch_dtype": self.dtype,
        }


def export(wanted: DecoderExport) -> None:
    """Write a directory that NeuronModelForCausalLM.from_pretrained loads, weights included.

    What fails is an error of the process.
    """
    transformers_package()
    from optimum.neuron.utils.instance import align_compilation_target

    # As optimum-cli does: before anything of the SDK is imported, and whatever kind of host this is.
    align_compilation_target(wanted.instance_type, override=True)
    import torch
    from optimum.neuron import NeuronModelForCausalLM
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(wanted.model_dir, local_files_only=True).get_text_config()
    config.dtype = getattr(torch, wanted.dtype)
    settings = NeuronModelForCausalLM.get_neuron_config(
        wanted.model_dir,
        config=config,
        instance_type=wanted.instance_type,
        batch_size=wanted.batch_size,
        sequence_length=wanted.sequence_length,
        tensor_parallel_size=wanted.tensor_parallel_size,
    )
    if wanted.on_device_sampling and not settings.on_device_sampling:
        sys.exit(
            "optimum-neuron switches on-device sampling off for this model and tensor_parallel_size, where the runtime "
            "is known to write garbage; set neuron.on_device_sampling: false"
        )
    settings.on_device_sampling = wanted.on_device_sampling
    settings.max_context_length = wanted.max_context_length
    with tempfile.TemporaryDirectory(prefix="lengthwise-neuron-") as work:
        os.environ["BASE_COMPILE_WORK_DIR"] = f"{work}/"  # else one folder for all exports of a host
        model = NeuronModelForCausalLM.export(wanted.model_dir, settings, config=config, load_weights=False)
        model.save_pretrained(wanted.out_dir)


if __name__ == "__main__":
    request = begin_export(sys.argv[1])
    versions = sdk_versions()
    double = "; this SDK is the double of the tests, not AWS's" if is_double(versions) else ""
    print(", ".join(f"{name} {version}" for name, version in versions.items()) + double, flush=True)  # noqa: T201
    print(request, flush=True)  # noqa: T201
    export(DecoderExport(**request))
