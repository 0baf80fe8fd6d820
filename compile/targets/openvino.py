"""Target `openvino`: Intel's runtime on one CPU thread, one static graph per shape, weights shared by all shapes.

The model is converted once. A compiled shape is exported without weights (0.5 to 1.2 MB for MiniLM); loading imports it
over the one weights file, which the kernel maps once for all processes. Import never runs the compiler.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.metadata
import importlib.util
import io
import logging
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compile.compilations import count_calls
from compile.errors import ArtifactError, CompileError, DeviceError
from compile.shapes import Shape
from compile.targets import EncoderBatch, check_shape
from compile.targets.cpu import cpu_kind, has_bf16, unsupported_on_cpu
from compile.targets.encoders import cpu_candidates, example_inputs, input_names, load_encoder, quiet
from compile.targets.openvino_gates import keep_gates_apart

GRAPH, WEIGHTS, BLOB = "model.xml", "model.bin", "shape.blob"


@functools.cache
def openvino_package() -> Any:
    """The package, with every `compile_model` of this process counted from here on."""
    # Its import, and NNCF's, would report to an analytics service; without this package they use a stub.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    count_calls(openvino.Core, "compile_model")  # openvino.compile_model goes through it too
    return openvino


def cpu_config(precision: str) -> dict[str, Any]:
    """One stream on one unpinned thread: the worker's own CPU affinity decides which core runs it.

    What int8 leaves unquantised runs in bf16 where the CPU has it.
    """
    half = precision == "bf16" or (precision == "int8" and has_bf16())
    return {
        "INFERENCE_PRECISION_HINT": "bf16" if half else "f32",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": 1,
        "ENABLE_CPU_PINNING": False,
        "CACHE_MODE": "OPTIMIZE_SIZE",
    }


def _input_name(port: Any) -> str:
    """The name among a port's names that we gave; conversion may add others."""
    return next(name for name in ("input_ids", "attention_mask", "token_type_ids") if name in port.names)


def saved_model(model: Any, directory: Path, name: str = GRAPH) -> Path:
    """Write a converted model, all of it or nothing. Raises OSError."""
    partial = directory.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        openvino_package().save_model(model, partial / name, compress_to_fp16=False)
    except RuntimeError as error:  # all that it says of a full disk is "iostream error"
        raise OSError(errno.EIO, f"OpenVINO could not write the model ({error})", str(partial)) from error
    partial.rename(directory)
    return directory


def _quantised(prepared: Path, work_dir: Path, calibration: Sequence[EncoderBatch]) -> Path:
    """The converted model with int8 scales measured on `calibration`."""
    directory = work_dir / "openvino-int8"
    if (directory / WEIGHTS).is_file():
        return directory
    if not calibration:
        raise CompileError("openvino int8 needs real rows to measure its scales on; give rows of the job")
    openvino = openvino_package()
    import nncf

    model = openvino.Core().read_model(prepared / GRAPH)
    names = [_input_name(port) for port in model.inputs]
    rows = [{name: getattr(batch, name) for name in names} for batch in calibration]
    nncf.set_log_level(logging.ERROR)
    try:
        with quiet(), contextlib.redirect_stdout(io.StringIO()):
            model = nncf.quantize(
                model, nncf.Dataset(rows), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(rows)
            )
    except RuntimeError as error:
        raise CompileError(f"openvino cannot quantise the model to int8: {error}") from error
    return saved_model(model, directory)


LOWEST = -3.38e38
"""A mask value that bf16 can hold; float32's lowest, -3.4028e38, would round to minus infinity."""


def _keep_finite_in_bf16(model: Any) -> None:
    """Raise float32's lowest number, where a model masks with it, to LOWEST.

    DeBERTa masks whole padding rows: a softmax over nothing but minus infinity is NaN, and that spreads to real rows.
    """
    from openvino import opset13

    for node in model.get_ops():
        if node.get_type_name() == "Constant" and node.get_element_type().is_real():
            values = node.data
            if values.size <= 16 and (np.isfinite(values) & (values < LOWEST)).any():
                raised = np.where(np.isfinite(values), np.maximum(values, LOWEST), values).astype(values.dtype)
                node.output(0).replace(opset13.constant(raised).output(0))


class OpenVinoTarget:
    """See compile.targets.Target."""

    name = "openvino"
    precisions = ("bf16", "fp32", "int8")
    calibrated = ("int8",)
    on_cpu = True

    def unavailable(self) -> str | None:
        if importlib.util.find_spec("openvino") is None:
            return "the package openvino is not installed; `pip install openvino`"
        return None

    def default_precision(self) -> str:
        return "bf16" if has_bf16() else "fp32"

    def supports(self, precision: str) -> str | None:
        return unsupported_on_cpu(self.name, self.precisions, precision)

    def versions(self) -> dict[str, str]:
        return {name: importlib.metadata.version(name) for name in ("openvino", "torch", "transformers")}

    def options(self, precision: str) -> dict[str, str]:
        return {name: str(value) for name, value in cpu_config(precision).items()}

    def machine(self) -> str:
        return cpu_kind()

    def candidates(self, max_length: int) -> list[Shape]:
        return cpu_candidates(max_length)

    def prepare(self, model_dir: Path, work_dir: Path, precision: str, calibration: Sequence[EncoderBatch]) -> Path:
        if precision == "int8":
            return _quantised(self.prepare(model_dir, work_dir, "fp32", []), work_dir, calibration)
        prepared = work_dir / "openvino"
        if (prepared / WEIGHTS).is_file():
            return prepared
        openvino = openvino_package()
        names = input_names(model_dir)
        encoder = load_encoder(model_dir)
        try:
            with quiet():
                model = openvino.convert_model(encoder, example_input=example_inputs(names))
        except RuntimeError as error:
            raise CompileError(f"openvino cannot convert {model_dir}: {error}") from error
        _keep_finite_in_bf16(model)
        keep_gates_apart(model)
        return saved_model(model, prepared)

    def compile(self, prepared_dir: Path, shape: Shape, precision: str, out_dir: Path) -> None:
        core = openvino_package().Core()
        try:
            # From a path, because only constants that were read from a file can be left out of the blob.
            model = core.read_model(prepared_dir / GRAPH)
            model.reshape({port.any_name: [shape.batch, shape.length] for port in model.inputs})
            blob = core.compile_model(model, "CPU", cpu_config(precision)).export_model()
        except RuntimeError as error:
            raise CompileError(f"openvino: {shape} {precision}: {error}") from error
        (out_dir / BLOB).write_bytes(blob.getvalue())
        shutil.copyfile(prepared_dir / WEIGHTS, out_dir / WEIGHTS)

    def load(self, artifact_dir: Path, shape: Shape, precision: str) -> OpenVinoExecutable:
        core = openvino_package().Core()
        config = {**cpu_config(precision), "WEIGHTS_PATH": str(artifact_dir / WEIGHTS)}
        try:
            blob = io.BytesIO((artifact_dir / BLOB).read_bytes())
            compiled = core.import_model(blob, "CPU", config)
        except (OSError, RuntimeError) as error:
            raise ArtifactError(f"openvino: {shape} {precision}: {error}") from error
        wrong = [port.any_name for port in compiled.inputs if tuple(port.shape) != (shape.batch, shape.length)]
        if wrong:
            raise ArtifactError(f"openvino: the artifact was not compiled for {shape}: inputs {', '.join(wrong)}")
        return OpenVinoExecutable(shape, compiled)


class OpenVinoExecutable:
    """See compile.targets.Executable."""

    def __init__(self, shape: Shape, compiled: Any) -> None:
        self.shape = shape
        self._names = [_input_name(port) for port in compiled.inputs]
        self._request = compiled.create_infer_request()

    def run(self, batch: EncoderBatch) -> NDArray[np.float32]:
        check_shape(batch, self.shape)
        try:
            inputs = [np.ascontiguousarray(getattr(batch, name)) for name in self._names]
            outputs = self._request.infer(inputs, share_inputs=True, share_outputs=False)
            return np.array(outputs[0], np.float32)
        except RuntimeError as error:
            raise DeviceError(f"openvino: {self.shape}: {error}") from error


target = OpenVinoTarget()
