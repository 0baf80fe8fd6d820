"""Target `stub`: executes nothing. For a model with a classifier of zeros, whose logits are its bias for every row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from compile.compilations import record_compilation
from compile.shapes import Shape
from compile.targets import EncoderBatch, check_shape
from compile.targets.encoders import cpu_candidates


class StubTarget:
    """See compile.targets.Target."""

    name = "stub"
    precisions = ("fp32",)
    calibrated: tuple[str, ...] = ()
    on_cpu = True

    def unavailable(self) -> str | None:
        return None

    def default_precision(self) -> str:
        return "fp32"

    def supports(self, precision: str) -> str | None:
        return None if precision in self.precisions else f"stub has no precision {precision!r}; choose fp32"

    def versions(self) -> dict[str, str]:
        return {"stub": "1"}

    def options(self, precision: str) -> dict[str, str]:
        return {}

    def machine(self) -> str:
        return ""

    def candidates(self, max_length: int) -> list[Shape]:
        return cpu_candidates(max_length)

    def prepare(self, model_dir: Path, work_dir: Path, precision: str, calibration: Sequence[EncoderBatch]) -> Path:
        return model_dir

    def compile(self, prepared_dir: Path, shape: Shape, precision: str, out_dir: Path) -> None:
        record_compilation()
        np.save(out_dir / "bias.npy", load_file(prepared_dir / "model.safetensors")["classifier.bias"])

    def load(self, artifact_dir: Path, shape: Shape, precision: str) -> StubExecutable:
        return StubExecutable(shape, np.load(artifact_dir / "bias.npy"))


class StubExecutable:
    """See compile.targets.Executable."""

    def __init__(self, shape: Shape, bias: NDArray[np.float32]) -> None:
        self.shape = shape
        self._logits = np.tile(bias, (shape.batch, 1))

    def run(self, batch: EncoderBatch) -> NDArray[np.float32]:
        check_shape(batch, self.shape)
        return self._logits


target = StubTarget()
