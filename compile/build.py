"""How an artifact comes to exist: compiled, loaded, compared with fp32 on real rows, measured, and then published."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compile.accuracy import LabelledRow, judge_accuracy, measure_accuracy
from compile.artifacts import ArtifactSpec, ArtifactStore, BatchTiming, Manifest, artifact_spec
from compile.batches import TokenRow, batch_rows
from compile.conversions import converted_model
from compile.errors import ArtifactError, CompileError
from compile.making import Proof, make_artifact, prove_pending, publish_proven
from compile.model import ModelInfo, read_model
from compile.parity import ParityRecord, Tolerance, compare, judge
from compile.reference import Reference
from compile.samples import Sample, check_rows, choose_samples
from compile.shapes import Shape, ShapePlan
from compile.targets import AnyTarget, EncoderBatch, Executable, Target, without_device
from compile.yardstick import yardstick

MEASURE_S = 0.5
"""Seconds given to timing one shape; a slower batch is still run MIN_REPEATS times."""
MIN_REPEATS, MAX_REPEATS = 3, 9
CALIBRATION_ROWS = 128


def build_missing(
    store: ArtifactStore,
    target: Target,
    model: ModelInfo,
    model_dir: Path,
    plan: ShapePlan,
    precision: str,
    samples: Sequence[TokenRow],
    tolerance: Tolerance,
    on_progress: Callable[[str], None] = lambda line: None,
    *,
    labelled: Sequence[LabelledRow] = (),
) -> list[Manifest]:
    """Manifests of all shapes of the plan, in its order; those without a fit artifact are built from `samples`.

    Raises CompileError when a shape does not compile or does not pass parity; shapes built before it stay published.
    """
    reference = Reference(model_dir, model.pad_token_id)

    def build(spec: ArtifactSpec, work_dir: Path) -> Manifest:
        given = (spec, samples, tolerance, work_dir)
        return build_artifact(store, target, model, model_dir, *given, reference=reference, labelled=labelled)

    return build_plan(
        store, target, [artifact_spec(target, model, shape, precision) for shape in plan.shapes], build, on_progress
    )


def build_plan(
    store: ArtifactStore,
    target: AnyTarget[Any],
    specs: Sequence[ArtifactSpec],
    build: Callable[[ArtifactSpec, Path], Manifest],
    on_progress: Callable[[str], None],
) -> list[Manifest]:
    """Manifests of these artifacts, in order; `build` makes those that are missing, in a folder that they share.

    It proves those that are pending, unless the device is not here either.
    """
    manifests = []
    with tempfile.TemporaryDirectory(prefix="lengthwise-build-") as work:
        for spec in specs:
            found, pending = usable(store, spec), store.pending(spec)
            if found is not None:
                on_progress(f"{spec.shape}: reused artifact {spec.key}")
            elif pending is not None and without_device(target) is not None:
                found = pending
                on_progress(f"{spec.shape}: artifact {spec.key} stays pending: {without_device(target)}")
            else:
                found = build(spec, Path(work))
                how = "proved" if pending else "built"
                seconds = "" if pending else f" in {found.compile_seconds:.2f} s"
                on_progress(f"{spec.shape}: {how} artifact {spec.key}{seconds}, {verdict(found)}")
            manifests.append(found)
    return manifests


def build_artifact(
    store: ArtifactStore,
    target: Target,
    model: ModelInfo,
    model_dir: Path,
    spec: ArtifactSpec,
    samples: Sequence[TokenRow],
    tolerance: Tolerance,
    work_dir: Path,
    *,
    reference: Reference | None = None,
    labelled: Sequence[LabelledRow] = (),
) -> Manifest:
    """Compile one shape, prove it on `samples` and publish it. Raises CompileError; then nothing was published.

    One that was compiled where its device was not there, and is pending, is proven here without being compiled.
    `work_dir` keeps the converted model, so builds that share it convert once; it serves one model and one precision.
    """
    check_inputs(target, model, model_dir, spec)
    check_rows(samples, model)
    reference = reference or Reference(model_dir, model.pad_token_id)
    chosen = choose_samples(samples, spec.shape, model.max_positions)
    proof = encoder_proof(target, model, chosen, reference, tolerance, labelled, precision=spec.precision)
    pending = store.pending(spec)
    if pending is not None:
        return prove_pending(store, target, pending, proof)
    prepared = converted_model(store, target, spec, model_dir, work_dir, calibration_batches(samples, model))
    return make_artifact(store, target, spec, prepared, work_dir, proof)


def adopt_artifact(
    store: ArtifactStore,
    target: Target,
    model: ModelInfo,
    model_dir: Path,
    spec: ArtifactSpec,
    directory: Path,
    samples: Sequence[TokenRow],
    tolerance: Tolerance,
    *,
    labelled: Sequence[LabelledRow] = (),
) -> Manifest:
    """As `build_artifact`, of a directory that was compiled elsewhere. What there is of the spec already stays."""
    check_inputs(target, model, model_dir, spec)
    check_rows(samples, model)
    chosen = choose_samples(samples, spec.shape, model.max_positions)
    reference = Reference(model_dir, model.pad_token_id)
    proof = encoder_proof(target, model, chosen, reference, tolerance, labelled, precision=spec.precision)
    found = usable(store, spec)
    return found or publish_proven(store, target, spec, directory, proof, compile_seconds=0.0)


def encoder_proof(
    target: Target,
    model: ModelInfo,
    samples: Sequence[Sample],
    reference: Reference,
    tolerance: Tolerance,
    labelled: Sequence[LabelledRow] = (),
    *,
    precision: str,
) -> Proof[Executable]:
    """How an encoder of that precision is proven and timed on `samples`."""

    def proof(executable: Executable, load_s: float) -> tuple[ParityRecord, BatchTiming]:
        record = prove(executable, samples, reference, model, tolerance, target.versions(), labelled)
        timing = measure(executable, samples, model.pad_token_id, yardstick(precision) if target.on_cpu else None)
        return record, replace(timing, load_s=load_s)

    return proof


def prove(
    executable: Executable,
    samples: Sequence[Sample],
    reference: Reference,
    model: ModelInfo,
    tolerance: Tolerance,
    versions: dict[str, str],
    labelled: Sequence[LabelledRow] = (),
) -> ParityRecord:
    """Run every sample in full and in partial batches, at several positions, and compare with the reference."""
    rows = [sample.row for sample in samples]
    expected = np.stack([reference.logits(row) for row in rows])
    logits, where = _run_groups(executable, rows, model.pad_token_id)
    moved = [index for index in range(len(rows)) if _moves(logits[where == index])]
    found = compare(expected[where], logits, model.problem_type)
    accuracy = measure_accuracy(executable, labelled, reference, model)
    reasons = judge(found, tolerance, len(moved)) + judge_accuracy(accuracy, tolerance.max_accuracy_drop)
    return ParityRecord(
        passed=not reasons,
        reasons=reasons,
        rows=len(where),
        max_abs_logit=found.max_abs_logit,
        mean_abs_logit=found.mean_abs_logit,
        label_flips=found.label_flips,
        nan_count=found.nan_count,
        moved_rows=len(moved),
        lengths=tuple(sorted({len(row) for row in rows})),
        made_rows=sum(sample.made for sample in samples),
        tolerance=tolerance,
        versions=versions,
        accuracy=accuracy,
    )


def _run_groups(
    executable: Executable, rows: Sequence[TokenRow], pad_token_id: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Logits (results, labels) of every row in several places, and the row that each result is of (results,)."""
    logits, where = [], []
    for group in _groups(len(rows), executable.shape.batch):
        batch = batch_rows([rows[index] for index in group], executable.shape, pad_token_id)
        logits.append(executable.run(batch)[: len(group)])
        where.extend(group)
    return np.concatenate(logits), np.array(where, np.int64)


def _moves(logits: NDArray[np.float32]) -> bool:
    """Whether a row's results (places, labels) differ in any bit; NaN is told as such, not as a move."""
    return bool(np.isfinite(logits).all()) and len({line.tobytes() for line in logits}) > 1


def measure(
    executable: Executable, samples: Sequence[Sample], pad_token_id: int, yard: Callable[[], float] | None
) -> BatchTiming:
    """Seconds of one execution on a full batch: one warm-up, then repeats within about MEASURE_S.

    A CPU target is timed in its thread's processor seconds, so that other processes on the machine do not count, and
    beside the yardstick, so that those on the same core do not; another, without one, by the clock.
    """
    clock = time.thread_time if yard else time.perf_counter
    rows = [samples[index % len(samples)].row for index in range(executable.shape.batch)]
    batch = batch_rows(rows, executable.shape, pad_token_id)
    executable.run(batch)
    seconds: list[float] = []
    yards: list[float] = []
    while len(seconds) < MIN_REPEATS or (len(seconds) < MAX_REPEATS and sum(seconds) < MEASURE_S):
        yards.append(yard() if yard else 0.0)
        started = clock()
        executable.run(batch)
        seconds.append(clock() - started)
    return BatchTiming(
        median_s=statistics.median(seconds),
        min_s=min(seconds),
        max_s=max(seconds),
        repeats=len(seconds),
        yardstick_s=statistics.median(yards),
    )


def calibration_batches(samples: Sequence[TokenRow], model: ModelInfo) -> list[EncoderBatch]:
    """Real rows, one per batch and unpadded, for precisions whose scales are measured. The same for every shape."""
    chosen = list(samples)[:: max(1, len(samples) // CALIBRATION_ROWS)][:CALIBRATION_ROWS]
    return [batch_rows([row], Shape(length=len(row), batch=1), model.pad_token_id) for row in chosen]


def _groups(count: int, batch: int) -> list[list[int]]:
    """Which sample goes to which position: every sample in full batches, then moved by one, then one alone."""
    full = [[(start + offset) % count for offset in range(batch)] for start in range(0, count, batch)]
    shifted = [[(index + 1) % count for index in full[0]]]
    partial = [list(range(min(count, max(1, batch // 2))))[::-1]]
    return [*full, *shifted, *partial, [count - 1]]


def usable(store: ArtifactStore, spec: ArtifactSpec) -> Manifest | None:
    """The artifact when it is fit; one that is neither fit nor pending is removed, so that it can be built again."""
    try:
        return store.check(spec)
    except ArtifactError:
        if store.exists(spec.key) and store.pending(spec) is None:
            store.remove(spec.key)
        return None


def check_inputs(
    target: AnyTarget[Any], model: ModelInfo, model_dir: Path, spec: ArtifactSpec, *, classifier: bool = True
) -> None:
    """Raises CompileError when the folder's model, the key or the precision are not what is to be built."""
    found = read_model(model_dir, classifier=classifier)
    if found != model:
        names = [name for name in ModelInfo.__slots__ if getattr(found, name) != getattr(model, name)]
        raise CompileError(f"{model_dir} is not the model that was read before: {', '.join(names)} differ")
    if artifact_spec(target, model, spec.shape, spec.precision) != spec:
        raise CompileError(f"artifact {spec.key} is not one that this machine builds from {model_dir}")
    problem = target.supports(spec.precision)
    if problem:
        raise CompileError(problem)
    if spec.shape.length > model.max_positions:
        raise CompileError(f"{spec.shape} is longer than the model's {model.max_positions} positions")


def verdict(manifest: Manifest) -> str:
    """What an artifact costs and how far it is from the reference, for a person."""
    timing, parity = manifest.timing, manifest.parity
    batch = f"{timing.median_s * 1000:.1f} ms a batch" if timing else "not measured"
    if parity is None:
        return "parity pending: its device is not here; run `lengthwise compile --verify` on a host that has it"
    return f"{batch}, largest logit difference {parity.max_abs_logit:.2g}"
