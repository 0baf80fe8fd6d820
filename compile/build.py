"""How an artifact comes to exist: compiled, loaded, compared with fp32 on real rows, measured, and then published."""

from __future__ import annotations

import shutil
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
from compile.model import ModelInfo, read_model
from compile.parity import ParityRecord, Tolerance, compare, judge
from compile.reference import Reference
from compile.samples import Sample, check_rows, choose_samples
from compile.shapes import Shape, ShapePlan
from compile.targets import AnyTarget, EncoderBatch, Executable, Loaded, Target

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
        store, [artifact_spec(target, model, shape, precision) for shape in plan.shapes], build, on_progress
    )


def build_plan(
    store: ArtifactStore,
    specs: Sequence[ArtifactSpec],
    build: Callable[[ArtifactSpec, Path], Manifest],
    on_progress: Callable[[str], None],
) -> list[Manifest]:
    """Manifests of these artifacts, in order; `build` makes those that are missing, in a folder that they share."""
    manifests = []
    with tempfile.TemporaryDirectory(prefix="lengthwise-build-") as work:
        for spec in specs:
            found = usable(store, spec)
            if found is not None:
                on_progress(f"{spec.shape}: reused artifact {spec.key}")
            else:
                found = build(spec, Path(work))
                seconds = found.compile_seconds
                on_progress(f"{spec.shape}: built artifact {spec.key} in {seconds:.2f} s, {verdict(found)}")
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

    `work_dir` keeps the converted model, so builds that share it convert once; it serves one model and one precision.
    """
    check_inputs(target, model, model_dir, spec)
    check_rows(samples, model)
    reference = reference or Reference(model_dir, model.pad_token_id)
    prepared = converted_model(store, target, spec, model_dir, work_dir, calibration_batches(samples, model))
    out_dir = Path(tempfile.mkdtemp(dir=work_dir, prefix=f"{spec.shape}-"))
    try:
        executable, compile_seconds, load_s = compile_and_load(target, prepared, spec, out_dir)
        chosen = choose_samples(samples, spec.shape, model.max_positions)
        record = prove(executable, chosen, reference, model, tolerance, target.versions(), labelled)
        if not record.passed:
            raise CompileError(f"{spec.target} {spec.precision}: {spec.shape} is refused: {'; '.join(record.reasons)}")
        clock = time.thread_time if target.on_cpu else time.perf_counter
        timing = replace(measure(executable, chosen, model.pad_token_id, clock), load_s=load_s)
        return store.publish(spec, out_dir, compile_seconds=compile_seconds, timing=timing, parity=record)
    finally:
        shutil.rmtree(out_dir, ignore_errors=True)


def compile_and_load(
    target: AnyTarget[Loaded], prepared: Path, spec: ArtifactSpec, out_dir: Path
) -> tuple[Loaded, float, float]:
    """The artifact as a worker would load it, and the seconds that compiling and loading took."""
    started = time.perf_counter()
    target.compile(prepared, spec.shape, spec.precision, out_dir)
    compiled = time.perf_counter()
    try:
        executable = target.load(out_dir, spec.shape, spec.precision)
        return executable, compiled - started, time.perf_counter() - compiled
    except ArtifactError as error:
        raise CompileError(f"{spec.target} {spec.precision}: {spec.shape} does not load: {error}") from error


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
    executable: Executable, samples: Sequence[Sample], pad_token_id: int, clock: Callable[[], float]
) -> BatchTiming:
    """Seconds of one execution on a full batch by that clock: one warm-up, then repeats within about MEASURE_S.

    A CPU target is timed in its thread's processor seconds, so that other processes on the machine do not count.
    """
    rows = [samples[index % len(samples)].row for index in range(executable.shape.batch)]
    batch = batch_rows(rows, executable.shape, pad_token_id)
    executable.run(batch)
    seconds: list[float] = []
    while len(seconds) < MIN_REPEATS or (len(seconds) < MAX_REPEATS and sum(seconds) < MEASURE_S):
        started = clock()
        executable.run(batch)
        seconds.append(clock() - started)
    return BatchTiming(
        median_s=statistics.median(seconds), min_s=min(seconds), max_s=max(seconds), repeats=len(seconds)
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
    """The artifact when it is fit; one that is not fit is removed, so that it can be built again."""
    try:
        return store.check(spec)
    except ArtifactError:
        if store.exists(spec.key):
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
    return f"{batch}, largest logit difference {parity.max_abs_logit:.2g}" if parity else batch
