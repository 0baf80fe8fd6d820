"""Shows optimum-neuron the devices of NEURON_DOUBLE_HOST where it looks: /proc/devices, /dev and the product name.

Those are files that no test can write, so its module `optimum.neuron.utils.system` gets an `open` and an `os` that
know them. Its functions stay its own.
"""

from __future__ import annotations

import builtins
import io
import os
from types import SimpleNamespace
from typing import Any

import sdk_double

MAJOR = 245


class _Os:
    """The module os, with the simulated devices in /dev."""

    def __init__(self, devices: int) -> None:
        self._names = [f"neuron{index}" for index in range(devices)]

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def walk(self, top: str) -> Any:
        return iter([(top, [], list(self._names))]) if top == "/dev" else os.walk(top)

    def stat(self, path: str) -> Any:
        if path.removeprefix("/dev/") in self._names:
            return SimpleNamespace(st_rdev=os.makedev(MAJOR, self._names.index(path.removeprefix("/dev/"))))
        return os.stat(path)


def show_to_optimum_neuron() -> None:
    """Called when torch_neuronx is imported, in every process that has the double."""
    found = sdk_double.host()
    if found is None:
        return
    from optimum.neuron.utils import instance, neuron_device_memory, system

    name, devices = found
    files = {
        "/proc/devices": f"Character devices:\n{MAJOR} neuron\n",
        "/sys/devices/virtual/dmi/id/product_name": f"{name}\n",
    }

    def opened(path: Any, *args: Any, **kwargs: Any) -> Any:
        return io.StringIO(files[path]) if path in files else builtins.open(path, *args, **kwargs)

    neuron_device_memory.SYSFS_NEURON_BASE = SimpleNamespace(exists=lambda: True, glob=lambda pattern: [])
    system.open = opened
    system.os = _Os(devices)
    for each in (system.get_neuron_major, system.get_instance_name, system.cores_per_device):
        each.cache_clear()
    instance.current_instance_type.cache_clear()
    if instance.current_instance_type() != "trn1" and os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE") == "trn1":
        del os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"]  # it was set while optimum-neuron saw no device
