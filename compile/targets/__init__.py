"""Targets: toolchains that compile a model for a static shape and execute it. Found by name, imported on use."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from compile.errors import ShapeMismatch
from compile.neuron_settings import NeuronSettings
from compile.shapes import Shape
from compile.toolchains import target_module


@dataclass(frozen=True, slots=True)
class EncoderBatch:
    """One padded batch, right-padded; every array is int64 of shape (batch, length)."""

    input_ids: NDArray[np.int64]
    attention_mask: NDArray[np.int64]
    token_type_ids: NDArray[np.int64]
    """All zero for single texts; a target drops it for models that take none."""


class Executable(Protocol):
    """A loaded artifact: one model copy, one static shape, one thread."""

    shape: Shape

    def run(self, batch: EncoderBatch) -> NDArray[np.float32]:
        """Logits, float32 (batch, labels). Raises ShapeMismatch for any other shape, DeviceError when execution fails.

        NaN and infinity are returned as they are: who calls decides that such a row is a reject.
        """


Loaded = TypeVar("Loaded", covariant=True)  # noqa: PLC0105 - reads better than Loaded_co


class AnyTarget(Protocol[Loaded]):
    """Both halves of a toolchain, whatever it loads. Stateless: options come with each call."""

    name: str
    precisions: tuple[str, ...]
    """Accepted names, best first where the machine supports it."""
    calibrated: tuple[str, ...]
    """Precisions whose conversion depends on calibration rows; such a conversion is kept and used for all shapes."""
    on_cpu: bool
    """Whether the calling thread does the work, so that its processor seconds are what a batch costs."""

    def unavailable(self) -> str | None:
        """Why this machine cannot compile or run for the target, in a sentence; None when it can."""

    def default_precision(self) -> str:
        """What `precision: auto` means on this machine."""

    def supports(self, precision: str) -> str | None:
        """Why this machine cannot run that precision, in a sentence that names the choices; None when it can."""

    def versions(self) -> dict[str, str]:
        """Packages whose version can change the compiled bytes or the results."""

    def options(self, precision: str) -> dict[str, str]:
        """Settings of the toolchain that can change the compiled bytes or the results."""

    def machine(self) -> str:
        """Machine kind that compiled code is tied to; empty when it runs anywhere."""

    def candidates(self, max_length: int) -> list[Shape]:
        """Shapes the planner may choose from, up to and including `max_length`."""

    def prepare(self, model_dir: Path, work_dir: Path, precision: str, calibration: Sequence[EncoderBatch]) -> Path:
        """Convert the model once for all shapes (for example to an IR); returns a directory under work_dir. Idempotent.

        `calibration` holds real rows, for precisions whose scales are measured (int8); others ignore it. A work_dir
        serves one model and one precision. Raises CompileError.
        """

    def compile(self, prepared_dir: Path, shape: Shape, precision: str, out_dir: Path) -> None:
        """Write everything that `load` needs for one shape into out_dir. Raises CompileError."""

    def load(self, artifact_dir: Path, shape: Shape, precision: str) -> Loaded:
        """Load without compiling. Raises ArtifactError when the files do not fit this machine or version."""


@runtime_checkable
class CompilesElsewhere(Protocol):
    """Of targets that also compile on hosts without the device; their artifacts are then proven later, on one."""

    def without_device(self) -> str | None:
        """Why what is compiled in this process cannot run in it, in a sentence; None when it can."""


def without_device(target: object) -> str | None:
    """Why this process can compile for a target and not execute, in a sentence; None when it can do both."""
    return target.without_device() if isinstance(target, CompilesElsewhere) else None


@runtime_checkable
class AdoptsExports(Protocol):
    """Of targets whose artifacts are a toolchain's own exports, which others can make as well."""

    def exported_shape(self, directory: Path) -> Shape:
        """The shape that an export was compiled for. Raises ArtifactError when it is none."""

    def check_export(self, directory: Path, shape: Shape, precision: str) -> None:
        """Raises ArtifactError that names each setting in which an export differs from what the target would make."""


class Target(AnyTarget[Executable], Protocol):
    """A toolchain for encoders: one execution maps a padded batch to logits."""


def check_shape(batch: EncoderBatch, shape: Shape) -> None:
    """Raises ShapeMismatch unless all three arrays are exactly (shape.batch, shape.length)."""
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        found = getattr(batch, name).shape
        if found != (shape.batch, shape.length):
            raise ShapeMismatch(f"{name} has shape {found}; this graph was compiled for {shape} and takes nothing else")


def load_target(name: str, settings: NeuronSettings | None = None) -> Target:
    """The target of that name, with a job's settings where it has any. Raises ValueError that lists the valid names."""
    module = importlib.import_module(target_module(name))
    target: Target = module.make(settings or NeuronSettings()) if hasattr(module, "make") else module.target
    return target
