"""Decoder target `openvino-slots`: static slots as two OpenVINO graphs, prefill and decode, on one CPU thread.

The caches are arrays of this process, given to the decode graph as they lie; it returns each slot's new keys and
values, which are put in place here. So both graphs are functions without state.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compile.errors import ArtifactError, CompileError, DeviceError, ModelError
from compile.generation.requests import TextRules
from compile.generation.sampling import Sampling
from compile.shapes import Shape
from compile.targets import EncoderBatch
from compile.targets import openvino as encoder_target
from compile.targets.causal import attention_windows, decoder_candidates, rope_limit
from compile.targets.decoders import check_decode, check_prefill, grid_of, padded_prompts
from compile.targets.openvino import cpu_config, openvino_package
from compile.targets.openvino_slot_graphs import GRAPHS, convert_slots


@dataclass(frozen=True, slots=True)
class OpenVinoSlotsTarget:
    """See compile.targets.decoders.DecoderTarget."""

    new_tokens: int
    prefill_rows: int = 1
    name: str = "openvino-slots"
    precisions: tuple[str, ...] = ("bf16", "fp32")
    calibrated: tuple[str, ...] = ()
    on_cpu: bool = True
    independent: bool = True

    def unavailable(self) -> str | None:
        return encoder_target.target.unavailable()

    def default_precision(self) -> str:
        return encoder_target.target.default_precision()

    def supports(self, precision: str) -> str | None:
        if precision not in self.precisions:
            return f"{self.name} generates in: {', '.join(self.precisions)}; choose one of them, not {precision!r}"
        return encoder_target.target.supports(precision)

    def unsupported(self, sampling: Sampling, text: TextRules) -> str | None:
        return None

    def versions(self) -> dict[str, str]:
        return encoder_target.target.versions()

    def options(self, precision: str) -> dict[str, str]:
        own = {
            "new_tokens": str(self.new_tokens),
            "prefill_rows": str(self.prefill_rows),
            "graphs": "slots, past apart",
        }
        return {**encoder_target.target.options(precision), **own}

    def machine(self) -> str:
        return encoder_target.target.machine()

    def candidates(self, max_length: int) -> list[Shape]:
        return decoder_candidates(max_length, self.new_tokens)

    def prepare(self, model_dir: Path, work_dir: Path, precision: str, calibration: Sequence[EncoderBatch]) -> Path:
        try:
            return convert_slots(model_dir, work_dir / self.name, attention_windows(model_dir), rope_limit(model_dir))
        except ModelError as error:
            raise CompileError(f"{self.name}: {error}") from error

    def compile(self, prepared_dir: Path, shape: Shape, precision: str, out_dir: Path) -> None:
        grid = grid_of(shape, self.new_tokens, self.prefill_rows)
        core = openvino_package().Core()
        try:
            for graph in GRAPHS:
                model = core.read_model(prepared_dir / f"{graph}.xml")
                model.reshape(_static_shapes(model, graph, grid))
                model = _with_caches_in(model, precision)
                blob = core.compile_model(model, "CPU", cpu_config(precision)).export_model()
                (out_dir / f"{graph}.blob").write_bytes(blob.getvalue())
                shutil.copyfile(prepared_dir / f"{graph}.bin", out_dir / f"{graph}.bin")
        except RuntimeError as error:
            raise CompileError(f"{self.name}: {shape} {precision}: {error}") from error

    def load(self, artifact_dir: Path, shape: Shape, precision: str) -> OpenVinoSlots:
        core, compiled = openvino_package().Core(), {}
        try:
            for graph in GRAPHS:
                config = {**cpu_config(precision), "WEIGHTS_PATH": str(artifact_dir / f"{graph}.bin")}
                blob = io.BytesIO((artifact_dir / f"{graph}.blob").read_bytes())
                compiled[graph] = core.import_model(blob, "CPU", config)
        except (OSError, RuntimeError) as error:
            raise ArtifactError(f"{self.name}: {shape} {precision}: {error}") from error
        grid = grid_of(shape, self.new_tokens, self.prefill_rows)
        found = (tuple(compiled["prefill"].inputs[0].shape), tuple(compiled["decode"].inputs[2].shape)[::2])
        if found != ((grid.prefill_rows, grid.prompt_length), (grid.slots, grid.positions)):
            raise ArtifactError(f"{self.name}: the artifact was not compiled for {shape} and {self.new_tokens} tokens")
        return OpenVinoSlots(shape, self, compiled["prefill"], compiled["decode"])


def _static_shapes(model: Any, graph: str, grid: Any) -> dict[Any, list[int]]:
    if graph == "prefill":
        return {model.inputs[0]: [grid.prefill_rows, grid.prompt_length], model.inputs[1]: [grid.prefill_rows]}
    caches = {}
    for port in model.inputs[2:]:
        _, heads, _, size = port.partial_shape
        caches[port] = [grid.slots, heads.get_length(), grid.positions, size.get_length()]
    return {model.inputs[0]: [grid.slots, 1], model.inputs[1]: [grid.slots], **caches}


def _with_caches_in(model: Any, precision: str) -> Any:
    """The model with keys and values coming in and out as it computes them, not as float32 that it has to convert."""
    if precision != "bf16":
        return model
    from openvino import Type
    from openvino.preprocess import PrePostProcessor

    ports = PrePostProcessor(model)
    for index in range(2, len(model.inputs)):
        ports.input(index).tensor().set_element_type(Type.bf16)
    for index in range(1, len(model.outputs)):
        ports.output(index).tensor().set_element_type(Type.bf16)
    return ports.build()


class OpenVinoSlots:
    """See compile.targets.decoders.StaticDecoder."""

    def __init__(self, shape: Shape, target: OpenVinoSlotsTarget, prefill: Any, decode: Any) -> None:
        openvino = openvino_package()
        self.grid = grid_of(shape, target.new_tokens, target.prefill_rows)
        self.vocab_size = int(decode.outputs[0].shape[-1])
        self._prefill, self._decode = prefill.create_infer_request(), decode.create_infer_request()
        self._rows = np.arange(self.grid.slots)
        self._bits: Any = np.float32
        """What caches are kept as: numpy has no bfloat16, and zero is zero in both."""
        if decode.inputs[2].get_element_type() == openvino.Type.bf16:
            self._bits = np.uint16
        self._caches = [np.zeros(tuple(port.shape), self._bits) for port in decode.inputs[2:]]
        for index, (cache, port) in enumerate(zip(self._caches, decode.inputs[2:], strict=True)):
            # It shares the array's memory, so that what is written there is what the graph reads.
            tensor = openvino.Tensor(cache, list(port.shape), port.get_element_type())
            self._decode.set_input_tensor(index + 2, tensor)

    def prefill(self, slots: Sequence[int], prompts: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        check_prefill(self.grid, slots, prompts)
        ids, lengths = padded_prompts(self.grid, prompts)
        logits, *states = self._run(self._prefill, ids, lengths)
        count, places = len(prompts), self.grid.prompt_length
        real = (np.arange(places) < lengths[:, None])[:count, None, :, None]
        for cache, state in zip(self._caches, states, strict=True):
            # Zero beyond the prompt: a mask hides what another row left, unless it is NaN.
            cache[list(slots)] = 0
            cache[list(slots), :, :places] = np.where(real, state[:count], self._bits(0))
        return np.array(logits[:count], np.float32)

    def decode(self, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float32]:
        check_decode(self.grid, tokens, positions)
        logits, *states = self._run(self._decode, tokens[:, None], positions)
        for cache, state in zip(self._caches, states, strict=True):
            cache[self._rows, :, positions] = state[:, :, 0]
        return np.array(logits, np.float32)

    def _run(self, request: Any, ids: NDArray[np.int64], places: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Logits, float32, and keys and values in the bits of the caches."""
        openvino = openvino_package()
        try:
            request.set_input_tensor(0, openvino.Tensor(np.ascontiguousarray(ids)))
            request.set_input_tensor(1, openvino.Tensor(np.ascontiguousarray(places)))
            request.infer()
            logits, *states = (request.get_output_tensor(index).data for index in range(1 + len(self._caches)))
            return [logits, *(state.view(self._bits) for state in states)]
        except RuntimeError as error:
            raise DeviceError(f"openvino-slots: {self.grid}: {error}") from error


def make(new_tokens: int) -> OpenVinoSlotsTarget:
    """The target for texts of up to that many new tokens."""
    return OpenVinoSlotsTarget(new_tokens)
