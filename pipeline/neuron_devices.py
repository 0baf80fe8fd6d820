"""Which NeuronCores this host has (neuron-ls) and which of them this process may use (NEURON_RT_VISIBLE_CORES)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import JobError, WorkerError

VISIBLE, COUNT = "NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES"
_TOOLS = Path("/opt/aws/neuron/bin")
"""Where aws-neuronx-tools lie; services often have no PATH to them."""
_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class NeuronDevice:
    """One device as neuron-ls lists it."""

    index: int
    cores: tuple[int, ...]
    """As NEURON_RT_VISIBLE_CORES counts them, over all devices of the host."""
    memory_bytes: int
    connected_to: tuple[int, ...]
    processes: tuple[tuple[int, str], ...]
    """(pid, command) of whoever uses it."""


def neuron_tool(name: str) -> str | None:
    """Path of a program of aws-neuronx-tools; None where it is not installed."""
    return shutil.which(name) or shutil.which(_TOOLS / name)


def list_devices() -> list[NeuronDevice]:
    """The host's devices. Raises JobError when it has none, WorkerError when neuron-ls does not answer well."""
    tool = neuron_tool("neuron-ls")
    if tool is None:
        raise JobError(
            f"this host has no NeuronCores: neuron-ls is neither on PATH nor in {_TOOLS}. Run on an Inf2 or Trn "
            "instance with aws-neuronx-tools (of a job in Airflow: queue), or choose a CPU target"
        )
    try:
        done = subprocess.run(
            [tool, "--json-output"], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkerError(f"{tool} --json-output: {error}; look after the Neuron driver, then run again") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["nothing on stderr"]
        raise JobError(
            f"this host has no NeuronCores that work: {tool} --json-output ended with {done.returncode} ({said[0]}). "
            "Is this an Inf2 or Trn instance, and is the driver (aws-neuronx-dkms) loaded?"
        )
    try:
        devices = parse_devices(done.stdout)
    except ValueError as error:
        raise WorkerError(f"{tool} --json-output: {error}; is another version of aws-neuronx-tools needed?") from error
    if not devices:
        raise JobError(f"this host has no NeuronCores: {tool} lists no device")
    return devices


def parse_devices(text: str) -> list[NeuronDevice]:
    """Devices from `neuron-ls --json-output`, a JSON array. Raises ValueError that names what is wrong.

    Older versions give no `neuroncore_ids`: cores then count on from device to device.
    """
    try:
        found = json.loads(text)
    except ValueError:
        raise ValueError(f"no JSON: {text[:80]!r}") from None
    if not isinstance(found, list):
        raise ValueError(f"no JSON array: {text[:80]!r}")
    return [_device(item) for item in found]


def _device(item: Any) -> NeuronDevice:
    try:
        index, count = int(item["neuron_device"]), int(item["nc_count"])
        cores = item.get("neuroncore_ids") or range(index * count, (index + 1) * count)
        processes = item.get("neuron_processes") or ()
        return NeuronDevice(
            index=index,
            cores=tuple(int(core) for core in cores),
            memory_bytes=int(item["memory_size"]),
            connected_to=tuple(int(other) for other in item.get("connected_to") or ()),
            processes=tuple((int(process["pid"]), str(process.get("command", ""))) for process in processes),
        )
    except KeyError as error:
        raise ValueError(f"a device without {error}: {str(item)[:80]}") from None
    except (TypeError, ValueError, AttributeError):
        raise ValueError(f"not a device: {str(item)[:80]}") from None


def usable_cores(present: Sequence[int], environment: Mapping[str, str] = os.environ) -> list[int]:
    """Those of the host's cores that the environment leaves to this process, ascending.

    As in the runtime, NEURON_RT_VISIBLE_CORES goes before NEURON_RT_NUM_CORES; of a number alone it is the first so
    many, for processes that are given one number must share. Raises JobError for cores that are not there.
    """
    visible, count = environment.get(VISIBLE, "").strip(), environment.get(COUNT, "").strip()
    cores = sorted(present)
    if visible:
        named = _named(visible)
        missing = sorted(named - set(cores))
        if missing:
            raise JobError(
                f"{VISIBLE}={visible} names NeuronCore {_listed(missing)}, but this host has {_listed(cores)}; "
                "correct the variable or unset it"
            )
        return sorted(named)
    if not count or count == "0":
        return cores
    if not count.isdecimal() or int(count) > len(cores):
        raise JobError(
            f"{COUNT}={count}, but this host has {len(cores)} NeuronCores ({_listed(cores)}); write a number up to "
            "that, or unset it"
        )
    return cores[: int(count)]


def _named(visible: str) -> set[int]:
    named: set[int] = set()
    for part in visible.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last > 1 << 16:
            raise JobError(f"{VISIBLE}={visible} is not a NeuronCore or a range of them; write for example 0 or 0-3")
        named |= set(range(first, last + 1))
    return named


def core_range(cores: Sequence[int]) -> str:
    """Neighbouring cores as NEURON_RT_VISIBLE_CORES takes them: `4` or `4-5`."""
    assert list(cores) == list(range(cores[0], cores[0] + len(cores))), cores
    return str(cores[0]) if len(cores) == 1 else f"{cores[0]}-{cores[-1]}"


def _listed(cores: Sequence[int]) -> str:
    return ", ".join(map(str, cores))
