"""When an artifact is proven: right after compiling where its device is there, else later, on a host that has one."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from compile.artifacts import ArtifactSpec, ArtifactStore, BatchTiming, Manifest
from compile.errors import ArtifactError, CompileError
from compile.parity import ParityRecord
from compile.targets import AnyTarget, Loaded, without_device

Proof = Callable[[Loaded, float], tuple[ParityRecord, BatchTiming]]
"""Compares what was loaded with the reference and times it, given the seconds of loading. Raises CompileError."""


def make_artifact(
    store: ArtifactStore,
    target: AnyTarget[Loaded],
    spec: ArtifactSpec,
    prepared: Path,
    work_dir: Path,
    proof: Proof[Loaded],
) -> Manifest:
    """Compile one shape, prove it and publish it; on a host without the device it is published as pending.

    Raises CompileError; then nothing was published.
    """
    out_dir = Path(tempfile.mkdtemp(dir=work_dir, prefix=f"{spec.shape}-"))
    try:
        started = time.perf_counter()
        target.compile(prepared, spec.shape, spec.precision, out_dir)
        return publish_proven(store, target, spec, out_dir, proof, time.perf_counter() - started)
    finally:
        shutil.rmtree(out_dir, ignore_errors=True)


def publish_proven(
    store: ArtifactStore,
    target: AnyTarget[Loaded],
    spec: ArtifactSpec,
    directory: Path,
    proof: Proof[Loaded],
    compile_seconds: float,
) -> Manifest:
    """Prove a compiled directory where its device is there, and publish it. Raises CompileError."""
    parity, timing = None, None
    if without_device(target) is None:
        parity, timing = _prove(target, spec, directory, proof)
    return store.publish(spec, directory, compile_seconds=compile_seconds, timing=timing, parity=parity)


def prove_pending(store: ArtifactStore, target: AnyTarget[Loaded], pending: Manifest, proof: Proof[Loaded]) -> Manifest:
    """Prove a stored artifact that was compiled elsewhere, and record that. Raises CompileError; it is pending then."""
    with store.directory(pending) as directory:
        parity, timing = _prove(target, pending.spec, directory, proof)
    return store.record_proof(pending, parity, timing)


def _prove(
    target: AnyTarget[Loaded], spec: ArtifactSpec, directory: Path, proof: Proof[Loaded]
) -> tuple[ParityRecord, BatchTiming]:
    """Load it as a worker would, and prove that."""
    started = time.perf_counter()
    try:
        loaded = target.load(directory, spec.shape, spec.precision)
    except ArtifactError as error:
        raise CompileError(f"{spec.target} {spec.precision}: {spec.shape} does not load: {error}") from error
    parity, timing = proof(loaded, time.perf_counter() - started)
    if not parity.passed:
        raise CompileError(f"{spec.target} {spec.precision}: {spec.shape} is refused: {'; '.join(parity.reasons)}")
    return parity, timing
