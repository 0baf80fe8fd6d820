"""How an artifact comes to exist: compiled, loaded, compared with fp32 on real rows, measured, and then published."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from compile.artifacts import ArtifactSpec, ArtifactStore, BatchTiming, Manifest, artifact_spec
from compile.batches import TokenRow, batch_rows
from compile.errors import ArtifactError, CompileError
from compile.model import ModelInfo, read_model
from compile.parity import ParityRecord, Tolerance, compare, judge
from compile.reference import Reference
from compile.samples import Sample, check_rows, choose_samples
from compile.shapes import Shape, ShapePlan
from compile.targets import EncoderBatch, Executable, Target

MEASURE_S = 1.0
"""Seconds given to timing one shape; a slower batch is still run MIN_REPEATS times."""
MIN_REPEATS, MAX_REPEATS = 3, 15
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
) -> list[Manifest]:
    """Manifests of all shapes of the plan, in its order; those without a fit artifact are built from `samples`.

    Raises CompileError when a shape does not compile or does not pass parity; shapes built before it stay published.
    """
    manifests = []
    reference = Reference(model_dir, model.pad_token_id)
    with tempfile.TemporaryDirectory(prefix="lengthwise-build-") as work:
        for shape in plan.shapes:
            spec = artifact_spec(target, model, shape, precision)
            found = _usable(store, spec)
            if found is not None:
                on_progress(f"{shape}: reused artifact {spec.key}")
                manifests.append(found)
                continue
            manifest = build_artifact(
                store, target, model, model_dir, spec, samples, tolerance, Path(work), reference=reference
            )
            on_progress(f"{shape}: built artifact {spec.key} in {manifest.compile_seconds:.2f} s, {_verdict(manifest)}")
            manifests.append(manifest)
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
) -> Manifest:
    """Compile one shape, prove it on `samples` and publish it. Raises CompileError; then nothing was published.

    `work_dir` keeps the converted model, so builds that share it convert once; it serves one model and one precision.
    """
    _check_inputs(target, model, model_dir, spec)
    check_rows(samples, model)
    reference = reference or Reference(model_dir, model.pad_token_id)
    prepared = target.prepare(model_dir, work_dir, spec.precision, calibration_batches(samples, spec.shape, model))
    out_dir = Path(tempfile.mkdtemp(dir=work_dir, prefix=f"{spec.shape}-"))
    try:
        started = time.perf_counter()
        target.compile(prepared, spec.shape, spec.precision, out_dir)
        compile_seconds = time.perf_counter() - started
        try:
            executable = target.load(out_dir, spec.shape, spec.precision)
        except ArtifactError as error:
            raise CompileError(f"{spec.target} {spec.precision}: {spec.shape} does not load: {error}") from error
        chosen = choose_samples(samples, spec.shape, model.max_positions)
        record = prove(executable, chosen, reference, model, tolerance, target.versions())
        if not record.passed:
            raise CompileError(f"{spec.target} {spec.precision}: {spec.shape} is refused: {'; '.join(record.reasons)}")
        timing = measure(
            executable, chosen, model.pad_token_id, time.thread_time if target.on_cpu else time.perf_counter
        )
        return store.publish(spec, out_dir, compile_seconds=compile_seconds, timing=timing, parity=record)
    finally:
        shutil.rmtree(out_dir, ignore_errors=True)


def prove(
    executable: Executable,
    samples: Sequence[Sample],
    reference: Reference,
    model: ModelInfo,
    tolerance: Tolerance,
    versions: dict[str, str],
) -> ParityRecord:
    """Run every sample in full and in partial batches, at several positions, and compare with the reference."""
    rows = [sample.row for sample in samples]
    expected = np.stack([reference.logits(row) for row in rows])
    got, where = [], []
    moved: set[int] = set()
    first: dict[int, bytes] = {}
    for group in _groups(len(rows), executable.shape.batch):
        logits = executable.run(batch_rows([rows[index] for index in group], executable.shape, model.pad_token_id))
        for position, index in enumerate(group):
            if first.setdefault(index, logits[position].tobytes()) != logits[position].tobytes():
                moved.add(index)
            got.append(logits[position])
            where.append(index)
    # Rows are NaN for a reason of their own, which is told apart from rows that change with their neighbours.
    moved = {index for index in moved if np.isfinite(got[where.index(index)]).all()}
    found = compare(expected[where], np.stack(got), model.problem_type)
    reasons = judge(found, tolerance, len(moved))
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
    )


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


def calibration_batches(samples: Sequence[TokenRow], shape: Shape, model: ModelInfo) -> list[EncoderBatch]:
    """Real rows, one per batch and unpadded, for precisions whose scales are measured. The same for every shape."""
    chosen = list(samples)[:: max(1, len(samples) // CALIBRATION_ROWS)][:CALIBRATION_ROWS]
    return [batch_rows([row], Shape(length=len(row), batch=1), model.pad_token_id) for row in chosen]


def _groups(count: int, batch: int) -> list[list[int]]:
    """Which sample goes to which position: every sample in full batches, then moved by one, then one alone."""
    full = [[(start + offset) % count for offset in range(batch)] for start in range(0, count, batch)]
    shifted = [[(index + 1) % count for index in full[0]]]
    partial = [list(range(min(count, max(1, batch // 2))))[::-1]]
    return [*full, *shifted, *partial, [count - 1]]


def _usable(store: ArtifactStore, spec: ArtifactSpec) -> Manifest | None:
    """The artifact when it is fit; one that is not fit is removed, so that it can be built again."""
    try:
        return store.check(spec)
    except ArtifactError:
        if store.exists(spec.key):
            store.remove(spec.key)
        return None


def _check_inputs(target: Target, model: ModelInfo, model_dir: Path, spec: ArtifactSpec) -> None:
    found = read_model(model_dir)
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


def _verdict(manifest: Manifest) -> str:
    timing, parity = manifest.timing, manifest.parity
    batch = f"{timing.median_s * 1000:.1f} ms a batch" if timing else "not measured"
    return f"{batch}, largest logit difference {parity.max_abs_logit:.2g}" if parity else batch
