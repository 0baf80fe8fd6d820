"""Simulated Neuron hosts: programs `neuron-ls` and `neuron-monitor` that a test puts on PATH.

They stand for the formats that AWS documents, never for a device.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

GIB = 1 << 30


def devices(
    count: int, cores_each: int = 2, memory_bytes: int = 32 * GIB, instance: str = "inf2.24xlarge"
) -> list[dict[str, Any]]:
    """What `neuron-ls --json-output` says of an idle host with so many devices in a ring."""
    return [
        {
            "instance_type": instance,
            "neuron_device": index,
            "bdf": f"0000:{index:02x}:1e.0",
            "cpu_affinity": "0-7",
            "numa_node": "-1",
            "connected_to": sorted({(index - 1) % count, (index + 1) % count} - {index}) or None,
            "nc_count": cores_each,
            "memory_size": memory_bytes,
            "neuroncore_ids": list(range(index * cores_each, (index + 1) * cores_each)),
            "neuron_processes": [],
        }
        for index in range(count)
    ]


def put_program(folder: Path, name: str, code: str) -> None:
    """An executable that runs this Python code."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable} -S\n{code}")
    path.chmod(0o755)


def neuron_path(folder: Path, found: Sequence[dict[str, Any]] | str, monitor: str | None = None) -> dict[str, str]:
    """The environment of a host whose neuron-ls prints this; `monitor` is the Python code of its neuron-monitor."""
    text = found if isinstance(found, str) else json.dumps(found, indent=4)
    asked = "if sys.argv[1:] != ['--json-output']: sys.exit('unknown arguments')"
    put_program(folder, "neuron-ls", f"import sys\n{asked}\nprint({text!r})\n")
    if monitor is not None:
        put_program(folder, "neuron-monitor", monitor)
    return {"PATH": os.pathsep.join([str(folder), os.environ.get("PATH", "")])}
