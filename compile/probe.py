"""Which costs a first plan is made with: a few shapes compiled and timed on this machine before any artifact exists.

Graphs that are only timed are thrown away: they were not compared with the reference, so no run may load them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from compile.artifacts import ArtifactStore, BatchTiming, artifact_spec
from compile.batches import TokenRow
from compile.build import calibration_batches, measure
from compile.conversions import converted_model
from compile.costs import CostModel, job_costs, probed_uri
from compile.model import ModelInfo
from compile.samples import check_rows, choose_samples
from compile.shapes import Shape, canonical_json
from compile.targets import Target
from compile.yardstick import yardstick

LENGTHS = (32, 128)
"""Probed beside the largest length: short and middling rows, where attention costs next to nothing and little."""


def probe_shapes(target: Target, max_length: int) -> list[Shape]:
    """Candidates of the target at three lengths: all of its batches there, so that every term of the fit is seen."""
    lengths = {max_length, *(length for length in LENGTHS if length < max_length)}
    return [shape for shape in target.candidates(max_length) if shape.length in lengths]


def probe_costs(
    store: ArtifactStore,
    target: Target,
    model: ModelInfo,
    model_dir: Path,
    precision: str,
    samples: Sequence[TokenRow],
    max_length: int,
    on_progress: Callable[[str], None] = lambda line: None,
) -> CostModel:
    """Costs for planning; measures the probe shapes unless that was done for this target, machine, model and precision.

    Takes some seconds on a CPU, where compiling is cheap; do not call it where a graph takes minutes to compile.
    Raises CompileError when the model cannot be compiled.
    """
    uri = probed_uri(store, target, model, precision)
    if not store.blobs.exists(uri):
        check_rows(samples, model)
        seconds, yards, loads = {}, {}, []
        with tempfile.TemporaryDirectory(prefix="lengthwise-probe-") as work:
            for shape in probe_shapes(target, max_length):
                timing = _probe(store, target, model, model_dir, precision, samples, shape, Path(work))
                seconds[str(shape)], yards[str(shape)] = timing.median_s, timing.yardstick_s
                loads.append(timing.load_s)
                on_progress(f"{shape}: {seconds[str(shape)] * 1000:.1f} ms a batch")
        store.blobs.put_new(
            uri, canonical_json({"shapes": seconds, "yardsticks": yards, "load_s": statistics.median(loads)})
        )
    return job_costs(store, target, model, precision)


def _probe(
    store: ArtifactStore,
    target: Target,
    model: ModelInfo,
    model_dir: Path,
    precision: str,
    samples: Sequence[TokenRow],
    shape: Shape,
    work_dir: Path,
) -> BatchTiming:
    spec = artifact_spec(target, model, shape, precision)
    prepared = converted_model(store, target, spec, model_dir, work_dir, calibration_batches(samples, model))
    out_dir = Path(tempfile.mkdtemp(dir=work_dir))
    target.compile(prepared, shape, precision, out_dir)
    chosen = choose_samples(samples, shape, model.max_positions)
    yard = yardstick(precision) if target.on_cpu else None
    started = time.perf_counter()
    executable = target.load(out_dir, shape, precision)
    load_s = time.perf_counter() - started
    return replace(measure(executable, chosen, model.pad_token_id, yard), load_s=load_s)
