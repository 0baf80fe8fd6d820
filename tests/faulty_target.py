"""Target `faulty`: OpenVINO for real, but rows that hold the token [MASK] break it, as FAULTY in the environment says.

FAULTY is JSON: `how` is raise (DeviceError), error (an error that no target should raise), abort (the process dies) or
kill (SIGKILL); with `log`, a file that gets a line per execution; with `times`, only that many batches fail, counted in
the log; with `every`, every batch fails, whatever it holds; with `wait_for`, executions wait until that file exists.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compile.errors import DeviceError
from compile.shapes import Shape
from compile.targets import EncoderBatch, Executable
from compile.targets.openvino import OpenVinoTarget

MASK = 4
"""Token id of [MASK] in the tiny models' BERT tokenizer: the text that spells it gets it."""


class FaultyTarget(OpenVinoTarget):
    """See compile.targets.Target."""

    name = "faulty"

    def load(self, artifact_dir: Path, shape: Shape, precision: str) -> Any:
        return FaultyExecutable(
            super().load(artifact_dir, shape, precision), json.loads(os.environ.get("FAULTY", "{}"))
        )


class FaultyExecutable:
    """See compile.targets.Executable."""

    def __init__(self, real: Executable, fault: dict[str, Any]) -> None:
        self.shape = real.shape
        self._real = real
        self._fault = fault

    def run(self, batch: EncoderBatch) -> NDArray[np.float32]:
        broken = bool((batch.input_ids == MASK).any()) or self._fault.get("every", False)
        failing = broken and bool(self._fault) and self._failures() < self._fault.get("times", 1 << 30)
        rows = int((batch.attention_mask.sum(axis=1) > 1).sum())
        self._log({"pid": os.getpid(), "rows": rows, "failed": failing})
        while "wait_for" in self._fault and not Path(self._fault["wait_for"]).exists():
            time.sleep(0.01)
        if failing:
            self._fail()
        return self._real.run(batch)

    def _fail(self) -> None:
        how = self._fault["how"]
        if how == "raise":
            raise DeviceError("faulty: a row holds [MASK]")
        if how == "error":
            raise KeyError("faulty: not an error of the Protocol")
        if how == "abort":
            os.abort()
        os.kill(os.getpid(), signal.SIGKILL)

    def _failures(self) -> int:
        return sum(line["failed"] for line in executions(Path(self._fault["log"]))) if "times" in self._fault else 0

    def _log(self, line: dict[str, Any]) -> None:
        if "log" in self._fault:
            with open(self._fault["log"], "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def executions(log: Path) -> list[dict[str, Any]]:
    """What the target was asked to execute: {pid, rows, failed}, in order."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


target = FaultyTarget()
