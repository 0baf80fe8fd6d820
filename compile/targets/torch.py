"""Target `torch`: PyTorch eager on one CPU thread. Its fp32 is the reference that other targets are compared with."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compile.compilations import record_compilation
from compile.errors import ArtifactError, CompileError, DeviceError, ModelError
from compile.model import weight_files
from compile.shapes import Shape
from compile.targets import EncoderBatch, check_shape
from compile.targets.cpu import cpu_kind, unsupported_on_cpu
from compile.targets.encoders import cpu_candidates, input_names, load_encoder


class TorchTarget:
    """Eager execution: an artifact is the model itself, and the shape is enforced here."""

    name = "torch"
    precisions = ("fp32", "bf16")
    calibrated: tuple[str, ...] = ()
    on_cpu = True

    def unavailable(self) -> str | None:
        for package in ("torch", "transformers"):
            if importlib.util.find_spec(package) is None:
                return f"the package {package} is not installed; `pip install {package}`"
        return None

    def default_precision(self) -> str:
        return "fp32"

    def supports(self, precision: str) -> str | None:
        return unsupported_on_cpu(self.name, self.precisions, precision)

    def versions(self) -> dict[str, str]:
        return {name: importlib.metadata.version(name) for name in ("torch", "transformers")}

    def options(self, precision: str) -> dict[str, str]:
        return {}

    def machine(self) -> str:
        return cpu_kind()

    def candidates(self, max_length: int) -> list[Shape]:
        return cpu_candidates(max_length)

    def prepare(self, model_dir: Path, work_dir: Path, precision: str, calibration: Sequence[EncoderBatch]) -> Path:
        input_names(model_dir)  # reads the config: a broken one is reported here rather than once per shape
        return model_dir

    def compile(self, prepared_dir: Path, shape: Shape, precision: str, out_dir: Path) -> None:
        record_compilation()
        try:
            for path in (prepared_dir / "config.json", *weight_files(prepared_dir)):
                shutil.copyfile(path, out_dir / path.name)
            for index in prepared_dir.glob("*.index.json"):
                shutil.copyfile(index, out_dir / index.name)
        except OSError as error:
            raise CompileError(f"torch: {shape}: {error}") from error

    def load(self, artifact_dir: Path, shape: Shape, precision: str) -> TorchExecutable:
        try:
            module = load_encoder(artifact_dir, precision)
        except ModelError as error:
            raise ArtifactError(f"torch: {shape}: {error}") from error
        return TorchExecutable(shape, module, input_names(artifact_dir))


class TorchExecutable:
    """See compile.targets.Executable."""

    def __init__(self, shape: Shape, module: Any, names: tuple[str, ...]) -> None:
        self.shape = shape
        self._module = module
        self._names = names

    def run(self, batch: EncoderBatch) -> NDArray[np.float32]:
        import torch

        check_shape(batch, self.shape)
        try:
            with torch.inference_mode():
                logits = self._module(**{name: torch.from_numpy(getattr(batch, name)) for name in self._names})
            return np.array(logits.float().numpy(), np.float32)
        except (RuntimeError, IndexError) as error:
            raise DeviceError(f"torch: {self.shape}: {error}") from error


target = TorchTarget()
