"""What the environment asks of the test double of the AWS Neuron SDK, and the log of what was asked of the double.

The double lets the real optimum-neuron run on a CPU: a graph is `torch.jit.trace` behind a guard that takes the traced
shapes and dtypes only. It stands for contracts, never for speed, numerics, memory or what the compiler accepts: casts
are ignored, nothing is laid out on cores. It is found only where its folder is put on the path (tests/neuron_tools.py).

| variable (NEURON_DOUBLE_...) | meaning |
| --- | --- |
| HOST | instance and number of devices, such as `inf2.xlarge:1`; without it this is a compile host without a device |
| LOG | a file that gets one JSON line per event: compile, neuronx-cc, load, execute |
| CC_VERSION | version that the compiler pretends to have |
| COMPILE | what `neuronx-cc` does: `fail`, `hang`, `kill` (SIGKILL, as by the OOM killer), `kill-python` (its parent) |
| EXECUTE | what an execution does: `raise`, `abort`, `kill` or `nan` (in the rows at fault) |
| TOKEN | only rows whose first input holds this token id are at fault; without it all are |
| SLOW | JSON, seconds by shape (batch x length), such as `{"6x40": 0.05}` |
| MEMORY | bytes that a core's device memory has |
| CORES | a folder in which processes lock the cores they have used until they end, as the driver has them do |

COMPILE and EXECUTE hold for one shape only where `@6x40` follows.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
from typing import Any

VERSION = "2.8.0+testdouble"
CC_VERSION = "2.21.33363.0+testdouble"
MEMORY_PER_CORE = 16 << 30
CORES_PER_DEVICE = {"inf2": 2, "trn1": 2, "trn1n": 2, "trn2": 4}
"""As optimum-neuron counts them."""


def setting(name: str) -> str | None:
    """A variable of the double; None where it is not set or empty."""
    return os.environ.get(f"NEURON_DOUBLE_{name}") or None


def host() -> tuple[str, int] | None:
    """Instance and number of devices; None on a host without any."""
    instance, _, devices = (setting("HOST") or "").partition(":")
    return (instance, int(devices or 1)) if instance else None


def fault(name: str, shape: str) -> str | None:
    """What COMPILE or EXECUTE asks for at this shape."""
    how, _, only = (setting(name) or "").partition("@")
    return how if how and only in ("", shape) else None


def log(event: str, **fields: Any) -> None:
    """One line, appended whole, so that many processes can share the file."""
    path = setting("LOG")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, "pid": os.getpid(), **fields}) + "\n")


def shape_of(sizes: list[int]) -> str:
    """As Lengthwise writes shapes."""
    return "x".join(map(str, sizes))


def compiler_flags(arguments: list[str]) -> argparse.Namespace:
    """The flags that optimum-neuron gives, as the compiler's documentation has them; exits (2) at any other."""
    parser = argparse.ArgumentParser("neuronx-cc", allow_abbrev=False)
    parser.add_argument("--auto-cast", choices=["none", "matmult", "all"])
    parser.add_argument("--auto-cast-type", choices=["bf16", "fp16", "tf32", "fp8_e4m3"])
    parser.add_argument("--optlevel", "-O", choices=["1", "2", "3"])
    parser.add_argument("--target", choices=["inf2", "trn1", "trn1n", "trn2"])
    parser.add_argument("--model-type", choices=["transformer", "unet-inference", "generic"])
    parser.add_argument("--tensorizer-options")
    parser.add_argument("--lnc", choices=["1", "2"])
    parser.add_argument("--enable-fast-loading-neuron-binaries", action="store_true")
    return parser.parse_args(arguments)


def check_host() -> list[int]:
    """The cores that this process sees. Raises RuntimeError in the runtime's words where there are none."""
    found = host()
    if found is None:
        raise RuntimeError(
            "[neuron test double] The PyTorch Neuron Runtime could not be initialized. Neuron Driver issues are logged "
            "to your system logs."
        )
    instance, devices = found
    count = devices * CORES_PER_DEVICE[instance.split(".")[0]]
    first, _, last = os.environ.get("NEURON_RT_VISIBLE_CORES", f"0-{count - 1}").partition("-")
    visible = list(range(int(first), int(last or first) + 1))[: int(os.environ.get("NEURON_RT_NUM_CORES", count))]
    if not visible or visible[-1] >= count:
        raise RuntimeError(
            f"[neuron test double] nrt_init: NRT_INVALID: cores {first}-{last or first} of {count} cores"
        )
    _reserve(visible)
    return visible


_reserved: dict[int, int] = {}
"""Core -> the open file that is this process's hold on it."""


def _reserve(cores: list[int]) -> None:
    """As the runtime does when it starts: all visible cores, until the process ends. Raises RuntimeError."""
    folder = setting("CORES")
    for core in cores if folder else ():
        if core not in _reserved:
            _reserved[core] = os.open(f"{folder}/{core}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(_reserved[core], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RuntimeError(f"[neuron test double] nrt_init: core {core} is used by another process") from None


def check_memory(size_bytes: int) -> None:
    """Raises RuntimeError in the runtime's words when a core cannot hold that much."""
    available = int(setting("MEMORY") or MEMORY_PER_CORE)
    if size_bytes > available:
        raise RuntimeError(
            f"[neuron test double] Failed to alloc DEVICE memory: {size_bytes} of {available} bytes; "
            'nrt_load status=4 message="Allocation Failure"'
        )
