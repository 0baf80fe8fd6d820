"""How a decoder's artifact comes to exist: compiled, loaded, proven on real prompts, timed, and then published."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from compile.artifacts import ArtifactSpec, ArtifactStore, BatchTiming, Manifest, artifact_spec
from compile.batches import TokenRow
from compile.build import build_plan, check_inputs, compile_and_load
from compile.conversions import converted_model
from compile.errors import CompileError
from compile.generation.parity import CausalReference, prove_decoder
from compile.generation.static import as_generator
from compile.generation.timing import slot_seconds
from compile.model import ModelInfo
from compile.parity import ParityRecord, Tolerance
from compile.samples import choose_samples
from compile.shapes import ShapePlan
from compile.targets.decoders import DecoderTarget, Generator, StaticDecoder, grid_of

PROMPTS_PER_SHAPE = 12


def build_missing_decoders(
    store: ArtifactStore,
    target: DecoderTarget,
    model: ModelInfo,
    model_dir: Path,
    plan: ShapePlan,
    precision: str,
    samples: Sequence[TokenRow],
    tolerance: Tolerance,
    on_progress: Callable[[str], None] = lambda line: None,
) -> list[Manifest]:
    """As compile.build.build_missing, for decoders; `samples` are prompts. Raises CompileError, DeviceError."""
    reference = CausalReference(model_dir)

    def build(spec: ArtifactSpec, work_dir: Path) -> Manifest:
        check_inputs(target, model, model_dir, spec, classifier=False)
        prepared = converted_model(store, target, spec, model_dir, work_dir, [])
        out_dir = Path(tempfile.mkdtemp(dir=work_dir, prefix=f"{spec.shape}-"))
        try:
            loaded, compile_seconds, load_s = compile_and_load(target, prepared, spec, out_dir)
            record = _proven(target, loaded, model, spec, samples, reference, tolerance)
            timing = _timing(target, loaded, model, spec, load_s)
            return store.publish(spec, out_dir, compile_seconds=compile_seconds, timing=timing, parity=record)
        finally:
            shutil.rmtree(out_dir, ignore_errors=True)

    return build_plan(
        store, [artifact_spec(target, model, shape, precision) for shape in plan.shapes], build, on_progress
    )


def _proven(
    target: DecoderTarget,
    loaded: StaticDecoder | Generator,
    model: ModelInfo,
    spec: ArtifactSpec,
    samples: Sequence[TokenRow],
    reference: CausalReference,
    tolerance: Tolerance,
) -> ParityRecord:
    chosen = choose_samples(samples, spec.shape, model.max_positions - target.new_tokens, PROMPTS_PER_SHAPE)
    prompts = [sample.row.token_ids.astype(np.int64) for sample in chosen]
    made_rows = sum(sample.made for sample in chosen)
    record = prove_decoder(loaded, prompts, reference, tolerance, target.versions(), made_rows, target.new_tokens)
    if not record.passed:
        raise CompileError(f"{spec.target} {spec.precision}: {spec.shape} is refused: {'; '.join(record.reasons)}")
    return record


def _timing(
    target: DecoderTarget, loaded: StaticDecoder | Generator, model: ModelInfo, spec: ArtifactSpec, load_s: float
) -> BatchTiming:
    """Seconds of a full set of slots that all write `new_tokens`: how many they will really write is not known yet."""
    # An engine of its own works in threads of its own.
    clock = time.perf_counter if isinstance(loaded, Generator) or not target.on_cpu else time.thread_time
    grid = grid_of(spec.shape, target.new_tokens)
    seconds = slot_seconds(as_generator(loaded), grid, target.new_tokens, model.vocab_size, clock)
    return BatchTiming(median_s=seconds, min_s=seconds, max_s=seconds, repeats=1, load_s=load_s)
