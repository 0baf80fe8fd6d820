"""Target `neuron`: AWS Inferentia2 and Trainium through optimum-neuron, one static graph per shape on one NeuronCore.

An artifact is an optimum-neuron export, which its own classes load. A host without a device compiles as well; what it
made is proven later, on a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compile.compilations import record_compilation
from compile.errors import ArtifactError, CompileError, DeviceError, ModelError, TargetUnavailable
from compile.model import read_json
from compile.neuron_settings import NeuronSettings
from compile.shapes import Shape
from compile.targets import EncoderBatch, check_shape
from compile.targets.neuron_compiler import run_export
from compile.targets.neuron_export import TASK
from compile.targets.neuron_host import compiler_version, device_problem, missing_sdk, sdk_versions

MAX_BATCH = 16
UNFIT = dict.fromkeys(
    ("xlm", "flaubert"), "its exported graph takes token_type_ids and embeds them as words, which no row here has"
)
"""Model types that optimum-neuron registers and that would compute something else."""
NO_MEMORY = ("Allocation Failure", "Failed to alloc", "NRT_RESOURCE")
NO_RUNTIME = ("could not be initialized", "NRT_INVALID", "NRT_UNINITIALIZED", "insufficent NCs")
"""What the Neuron runtime says when it loads a graph; `insufficent` is its spelling."""


def make(settings: NeuronSettings) -> NeuronTarget:
    """The target with a job's settings."""
    return NeuronTarget(settings)


class NeuronTarget:
    """See compile.targets.Target."""

    name = "neuron"
    precisions = ("bf16", "fp32")
    calibrated: tuple[str, ...] = ()
    on_cpu = False

    def __init__(self, settings: NeuronSettings) -> None:
        self.settings = settings

    def unavailable(self) -> str | None:
        return missing_sdk()

    def without_device(self) -> str | None:
        """Why what is compiled here cannot run here, in a sentence; None when it can."""
        return device_problem(self.settings)

    def default_precision(self) -> str:
        return "fp32" if self.settings.auto_cast == "none" else "bf16"

    def supports(self, precision: str) -> str | None:
        if precision not in self.precisions:
            return f"neuron has no precision {precision!r}; choose one of: {', '.join(self.precisions)}"
        auto = precision == self.default_precision()
        contradiction = self.settings.contradiction("auto" if auto else precision)
        return f"neuron: {contradiction}" if contradiction else None

    def versions(self) -> dict[str, str]:
        return sdk_versions()

    def options(self, precision: str) -> dict[str, str]:
        auto_cast, auto_cast_type = self.settings.casts(precision)
        return {
            "auto_cast": auto_cast,
            "auto_cast_type": auto_cast_type or "none",
            "optlevel": self.settings.optlevel,
            "instance_type": self.settings.instance_type,
            "inline_weights_to_neff": str(self.settings.inline_weights_to_neff).lower(),
        }

    def machine(self) -> str:
        return f"neuron-{self.settings.instance_type}"

    def candidates(self, max_length: int) -> list[Shape]:
        """Few: each graph takes minutes to compile, and every worker loads it once a night.

        Lengths in steps of 32 up to 128, of 64 up to 512, then of 128: padding stays near a quarter of a long row.
        Batches by powers of two: AWS's own rates gain little beyond 8 (1.34 times batch 1 on bert-base).
        """
        steps = [*range(32, 128, 32), *range(128, 512, 64), *range(512, max_length, 128)]
        lengths = sorted({*(length for length in steps if length < max_length), max_length})
        batches = [1 << power for power in range(MAX_BATCH.bit_length())]
        return [Shape(length=length, batch=batch) for length in lengths for batch in batches]

    def prepare(self, model_dir: Path, work_dir: Path, precision: str, calibration: Sequence[EncoderBatch]) -> Path:
        model_type = read_json(model_dir / "config.json").get("model_type")
        if model_type in UNFIT:
            raise CompileError(f"neuron: model type {model_type!r} is not supported: {UNFIT[model_type]}")
        known = registered_types()
        if model_type not in known:
            raise CompileError(
                f"neuron: optimum-neuron has no sequence classification for model type {model_type!r}; "
                f"it has: {', '.join(known)}"
            )
        return model_dir

    def compile(self, prepared_dir: Path, shape: Shape, precision: str, out_dir: Path) -> None:
        auto_cast, auto_cast_type = self.settings.casts(precision)
        record_compilation()
        request = {
            "model_dir": str(prepared_dir.resolve()),
            "out_dir": str(out_dir.resolve()),
            "batch_size": shape.batch,
            "sequence_length": shape.length,
            "compiler_kwargs": {
                "auto_cast": None if auto_cast == "none" else auto_cast,
                "auto_cast_type": auto_cast_type,
                "instance_type": self.settings.instance_type,
            },
            "optlevel": self.settings.optlevel,
            "inline_weights_to_neff": self.settings.inline_weights_to_neff,
        }
        title = f"neuron: {shape} {precision}"
        run_export("compile.targets.neuron_export", request, out_dir, title, self.settings.compile_timeout_s)

    def load(self, artifact_dir: Path, shape: Shape, precision: str) -> NeuronExecutable:
        self.check_export(artifact_dir, shape, precision)
        problem = device_problem(self.settings)
        if problem:
            raise TargetUnavailable(f"neuron: {shape} cannot be loaded: {problem}")
        from optimum.neuron import NeuronModelForSequenceClassification
        from optimum.utils import logging

        logging.set_verbosity_error()  # it tells of padding at every batch, and there is none
        try:
            model = NeuronModelForSequenceClassification.from_pretrained(artifact_dir, local_files_only=True)
        except Exception as error:  # whatever the package, TorchScript or the runtime say
            raise _load_error(shape, error) from error
        return NeuronExecutable(shape, model)

    def exported_shape(self, directory: Path) -> Shape:
        """See compile.targets.AdoptsExports."""
        found = _neuron_section(directory)
        try:
            return Shape(length=int(found["static_sequence_length"]), batch=int(found["static_batch_size"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"neuron: {directory} names no static shape in config.json ({error!r})") from None

    def check_export(self, directory: Path, shape: Shape, precision: str) -> None:
        """Raises ArtifactError when a directory is no export that these settings make, with this compiler."""
        found = _neuron_section(directory, f"{shape}: ")
        wanted = {
            "compiler_version": compiler_version(),
            "static_batch_size": str(shape.batch),
            "static_sequence_length": str(shape.length),
            "dynamic_batch_size": "false",
            "tensor_parallel_size": "1",
            "float_dtype": "fp32",
            **self.options(precision),
        }
        values = {name: "none" if found.get(name) is None else str(found[name]) for name in wanted}
        values = {name: value.lower() if value in ("True", "False") else value for name, value in values.items()}
        wrong = [f"{name} {values[name]} instead of {wanted[name]}" for name in wanted if values[name] != wanted[name]]
        if found.get("task") != TASK:
            wrong.append(f"task {found.get('task')} instead of {TASK}")
        if wrong:
            raise ArtifactError(f"neuron: the export was not compiled for {shape} as asked here: {', '.join(wrong)}")


def _neuron_section(directory: Path, title: str = "") -> dict[str, Any]:
    """What optimum-neuron wrote about an export. Raises ArtifactError when the directory is none of one graph."""
    try:
        found = read_json(directory / "config.json").get("neuron")
    except ModelError as error:
        raise ArtifactError(f"neuron: {title}{error}") from None
    if not isinstance(found, dict) or len(list(directory.glob("*.neuron"))) != 1:
        raise ArtifactError(f"neuron: {title}{directory} is no optimum-neuron export of one graph")
    return found


def registered_types() -> list[str]:
    """Model types that optimum-neuron exports as sequence classifiers."""
    import optimum.exporters.neuron.model_configs  # noqa: F401 - registers them
    from optimum.exporters.tasks import TasksManager

    return sorted(TasksManager.get_supported_model_type_for_task(TASK, "neuron"))


def _load_error(shape: Shape, error: Exception) -> Exception:
    text = told(error)
    if any(words in text for words in NO_MEMORY):
        return TargetUnavailable(
            f"neuron: {shape} does not fit into the core's device memory: {text}; see with neuron-top what else "
            "holds it, or plan smaller batches"
        )
    if any(words in text for words in NO_RUNTIME):
        return TargetUnavailable(
            f"neuron: {shape} cannot be loaded, for the Neuron runtime does not start: {text}; see neuron-ls "
            "and dmesg, and whether another process holds the core"
        )
    return ArtifactError(f"neuron: {shape}: {type(error).__name__}: {text}")


def told(error: Exception) -> str:
    """What the runtime said, without the traces that TorchScript puts around it."""
    text = " ".join(str(error).split())
    _, _, inner = text.rpartition("RuntimeError: ")
    return inner[:400]


class NeuronExecutable:
    """See compile.targets.Executable."""

    def __init__(self, shape: Shape, model: Any) -> None:
        self.shape = shape
        self._model = model
        self._names = tuple(model.input_static_shapes)

    def run(self, batch: EncoderBatch) -> NDArray[np.float32]:
        import torch

        check_shape(batch, self.shape)
        inputs = {name: torch.from_numpy(np.ascontiguousarray(getattr(batch, name))) for name in self._names}
        try:
            with torch.inference_mode():
                return np.array(self._model(**inputs).logits.float().numpy(), np.float32)
        except (RuntimeError, ValueError) as error:
            raise DeviceError(f"neuron: {self.shape}: {told(error)}") from error
