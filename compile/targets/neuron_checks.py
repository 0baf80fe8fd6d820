"""Whether a decoder's export is what is asked for and fits this host, said so that a person can act on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compile.errors import ArtifactError, ModelError
from compile.model import read_json
from compile.neuron_settings import NeuronSettings
from compile.targets.neuron_host import device_problem

NEURON_CONFIG = "neuron_config.json"


def check_decoder_export(artifact_dir: Path, wanted: Mapping[str, Any], versions: Mapping[str, str]) -> None:
    """Raises ArtifactError unless the export in `artifact_dir` has these settings and was made with these versions.

    optimum-neuron refuses other versions as well, but not other sizes.
    """
    try:
        found = read_json(artifact_dir / NEURON_CONFIG)
    except ModelError as error:
        raise ArtifactError(f"{error}; drop the artifact and compile again") from None
    for field, package in (("optimum_neuron_version", "optimum-neuron"), ("neuronxcc_version", "neuronx-cc")):
        if found.get(field) != versions[package]:
            raise ArtifactError(
                f"the export was made with {package} {found.get(field)}, and {versions[package]} is installed; "
                "install that version, or compile again"
            )
    wrong = [
        f"{name} {found.get(name)} instead of {value}" for name, value in wanted.items() if found.get(name) != value
    ]
    if wrong:
        raise ArtifactError(f"the export was not compiled for what is asked here: {', '.join(wrong)}")


def cores_problem(settings: NeuronSettings) -> str | None:
    """Why this process cannot load a decoder of these settings, in a sentence; None when it can."""
    problem = device_problem(settings)
    if problem:
        return problem
    from optimum.neuron.utils.system import get_available_cores

    wanted, seen = settings.tensor_parallel_size, get_available_cores()
    if seen >= wanted:
        return None
    return (
        f"neuron.tensor_parallel_size: {wanted} takes as many NeuronCores, and this process sees {seen}; free or add "
        "cores (NEURON_RT_VISIBLE_CORES and NEURON_RT_NUM_CORES limit them), or lower it and compile again"
    )
