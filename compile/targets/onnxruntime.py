"""Target `onnxruntime`: ONNX Runtime on one CPU thread. A shape is the graph after its optimiser, weights beside it.

The exported model has named dimensions; compiling fixes them, optimises for this CPU and writes the result. Loading
switches the optimiser off, so it runs what was proven and nothing is compiled.
"""

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
from compile.errors import ArtifactError, CompileError, DeviceError
from compile.shapes import Shape
from compile.targets import EncoderBatch, check_shape
from compile.targets.cpu import cpu_kind, unsupported_on_cpu
from compile.targets.encoders import cpu_candidates, example_inputs, input_names, load_encoder, quiet

GRAPH, WEIGHTS = "model.onnx", "weights.bin"
OPSET = 17
EXTERNAL_BYTES = "1024"
"""Constants from this size on lie in WEIGHTS, which most shapes of a model then share."""


class OnnxRuntimeTarget:
    """See compile.targets.Target."""

    name = "onnxruntime"
    precisions = ("fp32",)
    calibrated: tuple[str, ...] = ()
    on_cpu = True

    def unavailable(self) -> str | None:
        for package in ("onnxruntime", "onnx"):
            if importlib.util.find_spec(package) is None:
                return f"the package {package} is not installed; `pip install {package}`"
        return None

    def default_precision(self) -> str:
        return "fp32"

    def supports(self, precision: str) -> str | None:
        return unsupported_on_cpu(self.name, self.precisions, precision)

    def versions(self) -> dict[str, str]:
        return {name: importlib.metadata.version(name) for name in ("onnxruntime", "onnx", "torch", "transformers")}

    def options(self, precision: str) -> dict[str, str]:
        return {"opset": str(OPSET), "graph_optimization": "all"}

    def machine(self) -> str:
        return cpu_kind()

    def candidates(self, max_length: int) -> list[Shape]:
        return cpu_candidates(max_length)

    def prepare(self, model_dir: Path, work_dir: Path, precision: str, calibration: Sequence[EncoderBatch]) -> Path:
        prepared = work_dir / "onnxruntime"
        if not prepared.is_dir():
            partial = work_dir / "onnxruntime.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            _export(model_dir, partial / GRAPH)
            partial.rename(prepared)
        return prepared

    def compile(self, prepared_dir: Path, shape: Shape, precision: str, out_dir: Path) -> None:
        import onnxruntime

        record_compilation()
        options = _options()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.add_free_dimension_override_by_name("batch", shape.batch)
        options.add_free_dimension_override_by_name("length", shape.length)
        options.optimized_model_filepath = str(out_dir / GRAPH)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", WEIGHTS)
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", EXTERNAL_BYTES
        )
        try:
            onnxruntime.InferenceSession(str(prepared_dir / GRAPH), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions have no common class but this one
            raise CompileError(f"onnxruntime: {shape}: {error}") from error

    def load(self, artifact_dir: Path, shape: Shape, precision: str) -> OnnxRuntimeExecutable:
        import onnxruntime

        options = _options()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            session = onnxruntime.InferenceSession(
                str(artifact_dir / GRAPH), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise ArtifactError(f"onnxruntime: {shape}: {error}") from error
        wrong = [port.name for port in session.get_inputs() if port.shape != [shape.batch, shape.length]]
        if wrong:
            raise ArtifactError(f"onnxruntime: the artifact was not compiled for {shape}: inputs {', '.join(wrong)}")
        return OnnxRuntimeExecutable(shape, session)


class OnnxRuntimeExecutable:
    """See compile.targets.Executable."""

    def __init__(self, shape: Shape, session: Any) -> None:
        self.shape = shape
        self._session = session
        self._names = [port.name for port in session.get_inputs()]

    def run(self, batch: EncoderBatch) -> NDArray[np.float32]:
        check_shape(batch, self.shape)
        try:
            (logits,) = self._session.run(None, {name: getattr(batch, name) for name in self._names})
        except Exception as error:
            raise DeviceError(f"onnxruntime: {self.shape}: {error}") from error
        return np.asarray(logits, np.float32)


def _options() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


def _export(model_dir: Path, path: Path) -> None:
    import torch

    names = input_names(model_dir)
    example = example_inputs(names)
    axes = {name: {0: "batch", 1: "length"} for name in names}
    try:
        with quiet():
            torch.onnx.export(
                load_encoder(model_dir),
                tuple(example[name] for name in names),
                str(path),
                input_names=list(names),
                output_names=["logits"],
                dynamic_axes={**axes, "logits": {0: "batch"}},
                opset_version=OPSET,
                dynamo=False,
            )
    except (RuntimeError, torch.onnx.OnnxExporterError) as error:
        raise CompileError(f"onnxruntime cannot convert {model_dir}: {error}") from error


target = OnnxRuntimeTarget()
