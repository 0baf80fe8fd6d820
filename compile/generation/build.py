"""How a decoder's artifact comes to exist: compiled, loaded, proven on real prompts, timed, and then published."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from compile.artifacts import ArtifactSpec, ArtifactStore, BatchTiming, Manifest, artifact_spec
from compile.batches import TokenRow
from compile.build import build_plan, check_inputs
from compile.conversions import converted_model
from compile.generation.parity import CausalReference, prove_decoder
from compile.generation.static import as_generator
from compile.generation.timing import slot_seconds
from compile.making import make_artifact, prove_pending
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

        def proof(loaded: StaticDecoder | Generator, load_s: float) -> tuple[ParityRecord, BatchTiming]:
            record = _parity(target, loaded, model, spec, samples, reference, tolerance)
            return record, _timing(target, loaded, model, spec, load_s)

        pending = store.pending(spec)
        if pending is not None:
            return prove_pending(store, target, pending, proof)
        prepared = converted_model(store, target, spec, model_dir, work_dir, [])
        return make_artifact(store, target, spec, prepared, work_dir, proof)

    return build_plan(
        store, target, [artifact_spec(target, model, shape, precision) for shape in plan.shapes], build, on_progress
    )


def _parity(
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
    return prove_decoder(loaded, prompts, reference, tolerance, target.versions(), made_rows, target.new_tokens)


def _timing(
    target: DecoderTarget, loaded: StaticDecoder | Generator, model: ModelInfo, spec: ArtifactSpec, load_s: float
) -> BatchTiming:
    """Seconds of a full set of slots that all write `new_tokens`: how many they will really write is not known yet."""
    clock = time.perf_counter
    if target.on_cpu:  # processor seconds, so that a busy machine does not count; an engine has threads of its own
        clock = time.process_time if isinstance(loaded, Generator) else time.thread_time
    grid = grid_of(spec.shape, target.new_tokens)
    seconds = slot_seconds(as_generator(loaded), grid, target.new_tokens, model.vocab_size, clock)
    return BatchTiming(median_s=seconds, min_s=seconds, max_s=seconds, repeats=1, load_s=load_s)
