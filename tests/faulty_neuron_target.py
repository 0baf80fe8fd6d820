"""Target `faulty-neuron`: target `faulty` on simulated NeuronCores, which a process that has used one keeps to its end.

FAULTY_CORES is a folder in which a loaded model locks the cores that NEURON_RT_VISIBLE_CORES names, as the driver does:
a second process that loads one meanwhile gets a DeviceError. Its log says which process had which cores, and whether
the variables stood when nothing heavy was imported yet.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

from faulty_target import FaultyTarget

from compile.errors import DeviceError
from compile.shapes import Shape

_held: dict[str, int] = {}
VARIABLES = ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES")
HEAVY = ("torch", "optimum", "openvino", "transformers")
_first: list[dict[str, Any]] = []


class FaultyNeuronTarget(FaultyTarget):
    """See compile.targets.Target."""

    name = "faulty-neuron"
    on_cpu = False

    def unavailable(self) -> str | None:
        """What is asked first of a target."""
        imported = [name for name in HEAVY if name in sys.modules]
        _first.append({"imported": imported, **{name: os.environ.get(name) for name in VARIABLES}})
        return super().unavailable()

    def load(self, artifact_dir: Path, shape: Shape, precision: str) -> Any:
        folder = Path(os.environ["FAULTY_CORES"])
        visible = os.environ.get("NEURON_RT_VISIBLE_CORES", "all")
        first, _, last = visible.partition("-")
        for core in range(int(first), int(last or first) + 1):
            if str(core) not in _held:
                _held[str(core)] = os.open(folder / str(core), os.O_CREAT | os.O_RDWR)
                try:
                    fcntl.flock(_held[str(core)], fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise DeviceError(f"NeuronCore {core} is used by another process") from None
        step = sys.argv[sys.argv.index("step") + 1] if "step" in sys.argv else sys.argv[0]
        with (folder / "log").open("a", encoding="utf-8") as log:
            log.write(json.dumps({"pid": os.getpid(), "step": step, "cores": visible, **_first[0]}) + "\n")
        return super().load(artifact_dir, shape, precision)


target = FaultyNeuronTarget()
