"""Decoder target `neuron`: optimum-neuron's NeuronModelForCausalLM on AWS Inferentia2 and Trainium, an export a shape.

An export is a prefill graph of one prompt and a decode graph of all slots, over one cache, for one tensor-parallel
size. It has no length buckets of its own, so each prompt length that is planned is an export: minutes of compiling, the
weights once more in the artifact store, and a load by every worker that has rows for it. So a plan pays for each of its
shapes: the seconds of compiling two graphs, measured or estimated (compile.costs), spread over the job's
`amortise_nights`, and those of loading. A further prompt length is planned only where the padding that it saves in a
night is dearer. Shapes whose weights, cache and activations exceed the memory of the cores are not planned
(pipeline.frozen_plan), and refused before they are compiled; `max_graphs`, `max_memory_mb` and `max_compile_seconds` of
the job limit a plan further.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from compile.compilations import count_calls, record_compilation
from compile.costs import DECODER_GRAPHS
from compile.errors import ArtifactError, CompileError, ModelError, TargetUnavailable
from compile.generation.requests import TextRules
from compile.generation.sampling import Sampling
from compile.model import CONTENT
from compile.neuron_settings import NeuronSettings
from compile.shapes import Shape
from compile.targets import EncoderBatch
from compile.targets.causal import SLOT_POSITIONS
from compile.targets.decoders import grid_of
from compile.targets.neuron import load_error
from compile.targets.neuron_checks import check_decoder_export, cores_problem
from compile.targets.neuron_compiler import run_export
from compile.targets.neuron_decoder_export import DecoderExport
from compile.targets.neuron_engine import MAX_TOP_K, NeuronEngine, unsupported
from compile.targets.neuron_graphs import NeuronGraphs
from compile.targets.neuron_host import INSTALL, missing_sdk, sdk_versions
from compile.targets.neuron_models import check_architecture, check_memory, check_sizes, check_vocabulary
from compile.targets.neuron_slots import NeuronSlots

SLOTS = (4, 8, 16, 32)
DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
TOKENIZER = tuple(name for name in CONTENT if name != "config.json" and "index" not in name)
"""Files that go into an artifact, so that it is a whole export for others, too."""


@dataclass(frozen=True, slots=True)
class NeuronDecoderTarget:
    """See compile.targets.decoders.DecoderTarget."""

    new_tokens: int
    settings: NeuronSettings = field(default_factory=NeuronSettings)
    name: str = "neuron"
    precisions: tuple[str, ...] = ("bf16", "fp32")
    calibrated: tuple[str, ...] = ()
    on_cpu: bool = False

    @property
    def independent(self) -> bool:
        """Logits of a static graph depend on their row alone; what the device draws does not come from a seed."""
        return not self.settings.on_device_sampling

    def unavailable(self) -> str | None:
        lacking = missing_sdk()
        if lacking is None and importlib.util.find_spec("neuronx_distributed") is None:
            return f"the package neuronx-distributed is not installed, which decoders need; {INSTALL}"
        return lacking

    def without_device(self) -> str | None:
        """Why what is compiled here cannot run here, in a sentence; None when it can."""
        return cores_problem(self.settings)

    def default_precision(self) -> str:
        return "bf16"

    def supports(self, precision: str) -> str | None:
        if precision not in self.precisions:
            return f"neuron generates in: {', '.join(self.precisions)}; choose one of them, not {precision!r}"
        return None

    def unsupported(self, sampling: Sampling, text: TextRules) -> str | None:
        for name, given, fixed in (
            ("auto_cast", self.settings.auto_cast, None),
            ("auto_cast_type", self.settings.auto_cast_type, None),
            ("optlevel", self.settings.optlevel, "2"),
            ("inline_weights_to_neff", self.settings.inline_weights_to_neff, True),
        ):
            if given != fixed:
                return f"neuron.{name} is of encoders; decoders are cast by precision alone and have one way to compile"
        return unsupported(sampling, text) if self.settings.on_device_sampling else None

    def versions(self) -> dict[str, str]:
        return {**sdk_versions(), "neuronx-distributed": importlib.metadata.version("neuronx-distributed")}

    def options(self, precision: str) -> dict[str, str]:
        own = {
            "instance_type": self.settings.instance_type,
            "tensor_parallel_size": self.settings.tensor_parallel_size,
            "on_device_sampling": self.settings.on_device_sampling,
            "new_tokens": self.new_tokens,
            "graphs": "slots",
        }
        return {name: str(value) for name, value in own.items()}

    def machine(self) -> str:
        return f"neuron-{self.settings.instance_type}"

    def candidates(self, max_length: int) -> list[Shape]:
        """Few prompt lengths, ever coarser, for each is minutes of compiling; slots while their cache is small."""
        steps = [*range(32, 128, 32), *range(128, 512, 64), *range(512, 2048, 128), *range(2048, max_length, 256)]
        lengths = sorted({*(length for length in steps if length < max_length), max(2, max_length)})
        return [
            Shape(length=length, batch=slots)
            for length in lengths
            for slots in SLOTS
            if slots == SLOTS[0] or slots * (length + self.new_tokens) <= SLOT_POSITIONS
        ]

    def prepare(self, model_dir: Path, work_dir: Path, precision: str, calibration: Sequence[EncoderBatch]) -> Path:
        try:
            check_architecture(model_dir)
            if self.settings.on_device_sampling:
                check_vocabulary(model_dir, MAX_TOP_K)
        except ModelError as error:
            raise CompileError(f"neuron: {error}") from error
        return model_dir

    def compile(self, prepared_dir: Path, shape: Shape, precision: str, out_dir: Path) -> None:
        try:
            check_sizes(prepared_dir, shape, self.new_tokens)
            check_memory(prepared_dir, shape, self.new_tokens, precision, self.settings)
        except ModelError as error:
            raise CompileError(f"neuron: {shape} {precision}: {error}") from error
        record_compilation()
        request = asdict(self.wanted(prepared_dir.resolve(), shape, precision, out_dir.resolve()))
        title, module = f"neuron: {shape} {precision}", "compile.targets.neuron_decoder_export"
        run_export(module, request, out_dir, title, self.settings.compile_timeout_s * DECODER_GRAPHS)
        for pattern in TOKENIZER:
            for path in prepared_dir.glob(pattern):
                shutil.copyfile(path, out_dir / path.name)

    def load(self, artifact_dir: Path, shape: Shape, precision: str) -> NeuronSlots | NeuronEngine:
        wanted = self.wanted(artifact_dir, shape, precision, artifact_dir)
        try:
            check_decoder_export(artifact_dir, wanted.neuron_config(), self.versions())
        except ArtifactError as error:
            raise ArtifactError(f"neuron: {shape} {precision}: {error}") from None
        problem = cores_problem(self.settings)
        if problem:
            raise TargetUnavailable(f"neuron: {shape} cannot be loaded: {problem}")
        model = _loaded(artifact_dir, shape)
        graphs = NeuronGraphs(grid_of(shape, self.new_tokens), model, wanted.max_context_length)
        if self.settings.on_device_sampling:
            return NeuronEngine(graphs)
        return NeuronSlots(graphs, int(model.text_config.num_hidden_layers))

    def wanted(self, model_dir: Path, shape: Shape, precision: str, out_dir: Path) -> DecoderExport:
        """What optimum-neuron is asked for."""
        positions = shape.length + self.new_tokens
        on_device = self.settings.on_device_sampling
        return DecoderExport(
            model_dir=str(model_dir),
            out_dir=str(out_dir),
            instance_type=self.settings.instance_type,
            batch_size=shape.batch,
            sequence_length=positions,
            max_context_length=positions if on_device else shape.length,
            tensor_parallel_size=self.settings.tensor_parallel_size,
            on_device_sampling=on_device,
            dtype=DTYPES[precision],
        )


def _loaded(artifact_dir: Path, shape: Shape) -> Any:
    """The export on the cores that this process sees. Raises ArtifactError, TargetUnavailable."""
    from neuronx_distributed.trace import model_builder  # type: ignore[import-not-found]
    from optimum.neuron import NeuronModelForCausalLM

    count_calls(model_builder.ModelBuilder, "trace")  # all that could compile anything in this process
    try:
        return NeuronModelForCausalLM.from_pretrained(artifact_dir)
    except Exception as error:  # whatever the packages, TorchScript or the runtime say
        raise load_error(shape, error) from error


def make(new_tokens: int, settings: NeuronSettings | None = None) -> NeuronDecoderTarget:
    """The target for texts of up to that many new tokens."""
    return NeuronDecoderTarget(new_tokens, settings or NeuronSettings())
