"""What this host has of AWS Neuron: the SDK's packages, and a device that runs what was compiled."""

from __future__ import annotations

import importlib.metadata
import os

from compile.lean_imports import transformers_package
from compile.neuron_settings import NeuronSettings

PACKAGES = {"optimum-neuron": "optimum.neuron", "torch-neuronx": "torch_neuronx", "neuronx-cc": "neuronxcc"}
INSTALL = "install optimum-neuron[neuronx] from AWS's package repository; see README, Neuron"


def missing_sdk() -> str | None:
    """Which part of the SDK is missing, in a sentence; None when all are there. Imports nothing heavy."""
    for package in ("optimum-neuron", "torch-neuronx"):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return f"the package {package} is not installed; {INSTALL}"
    try:
        compiler_version()
    except ImportError as error:
        return f"the compiler neuronx-cc cannot be imported ({error}); {INSTALL}"
    except Exception as error:  # what PyPI has under these names raises errors of its own
        return f"neuronx-cc is not AWS's package ({type(error).__name__}: {str(error)[:120]}); {INSTALL}"
    return None


def compiler_version() -> str:
    """As optimum-neuron writes it into what it exports."""
    import neuronxcc

    return str(neuronxcc.__version__)


def sdk_versions() -> dict[str, str]:
    """Of everything that can change a compiled graph or its results."""
    packages = ("optimum-neuron", "torch-neuronx", "torch", "transformers")
    return {**{name: importlib.metadata.version(name) for name in packages}, "neuronx-cc": compiler_version()}


def is_double(versions: dict[str, str]) -> bool:
    """Whether the SDK is the double of the tests, which says nothing about speed or numbers of a device."""
    return any("testdouble" in version for version in versions.values())


def device_problem(settings: NeuronSettings) -> str | None:
    """Why what is compiled with these settings cannot run in this process, in a sentence; None when it can.

    Imports the runtime; asks as optimum-neuron itself does: the driver's major number, /dev, the instance's name.
    """
    transformers_package()
    import optimum.neuron
    import torch_neuronx  # noqa: F401 - after optimum.neuron, which sets what its import needs on hosts without a device
    from optimum.neuron.utils.instance import current_instance_type, normalize_instance_type
    from optimum.neuron.utils.system import cores_per_device, get_neuron_devices_count

    del optimum
    devices = get_neuron_devices_count()
    if not devices:
        return (
            f"this host has no Neuron device (no major number `neuron` in /proc/devices, no /dev/neuron0); use an "
            f"{settings.instance_type} host with the driver aws-neuronx-dkms"
        )
    found, wanted = current_instance_type(), normalize_instance_type(settings.instance_type)
    if found != wanted:
        return (
            f"this host is of the kind {found}, and neuron.instance_type {settings.instance_type} compiles for "
            f"{wanted}; use a host of that kind, or change the setting and compile again"
        )
    return _core_problem(devices * int(cores_per_device()))


def _core_problem(cores: int) -> str | None:
    """Why the visible cores are not there. `cores` are those of the host, numbered from 0."""
    text = os.environ.get("NEURON_RT_VISIBLE_CORES")
    try:
        visible = _visible_cores(text) if text is not None else list(range(cores))
    except ValueError:
        return f"NEURON_RT_VISIBLE_CORES={text!r} is not a core, a range such as 0-3, or a list of them"
    missing = [core for core in visible if core >= cores]
    if missing or not visible:
        what = f"core {missing[0]}" if missing else "no core"
        return f"NEURON_RT_VISIBLE_CORES={text} names {what}, and this host has cores 0 to {cores - 1}; correct it"
    return None


def _visible_cores(text: str) -> list[int]:
    cores: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores
