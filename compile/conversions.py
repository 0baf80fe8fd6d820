"""Which converted model all shapes of a calibrated precision are compiled from: the first one made, kept in the store.

Scales measured on other rows would give another model; shapes built on different nights must not disagree about a row.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compile.artifacts import ArtifactFile, ArtifactSpec, ArtifactStore, artifact_files
from compile.errors import ArtifactError
from compile.shapes import canonical_json
from compile.targets import AnyTarget, EncoderBatch


def converted_model(
    store: ArtifactStore,
    target: AnyTarget[Any],
    spec: ArtifactSpec,
    model_dir: Path,
    work_dir: Path,
    calibration: Sequence[EncoderBatch],
) -> Path:
    """The directory to compile `spec` from, made in `work_dir` or fetched. Raises CompileError, ArtifactError."""
    if spec.precision not in target.calibrated:
        return target.prepare(model_dir, work_dir, spec.precision, calibration)
    uri = conversion_uri(store, spec)
    fetched = work_dir / f"{spec.target}-{spec.precision}-stored"
    if fetched.is_dir():
        return fetched
    if not store.blobs.exists(uri):
        made = target.prepare(model_dir, work_dir, spec.precision, calibration)
        files = artifact_files(made)
        for name, file in files.items():
            store.upload_blob(made / name, file.sha256)
        store.blobs.put_new(uri, canonical_json({name: [file.sha256, file.size_bytes] for name, file in files.items()}))
    # Fetched even by who made it: of two builders at once, both must go on with the one that was kept.
    partial = fetched.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with store.cache.directory(_files(store, uri)) as directory:
        shutil.copytree(directory, partial)
    partial.rename(fetched)
    return fetched


def conversion_uri(store: ArtifactStore, spec: ArtifactSpec) -> str:
    """One per model, target, precision, versions, machine and options: all of a key but the shape."""
    identity = {name: value for name, value in spec.to_json().items() if name != "shape"}
    return f"{store.uri}/conversions/{hashlib.sha256(canonical_json(identity)).hexdigest()[:32]}.json"


def collect_conversions(store: ArtifactStore) -> set[str]:
    """Delete conversions that no artifact comes from; the digests of the blobs that the others need."""
    needed = {conversion_uri(store, manifest.spec) for manifest in store.list()}
    used: set[str] = set()
    for uri in store.blobs.list(f"{store.uri}/conversions/"):
        if uri not in needed:
            store.blobs.delete(uri)
            continue
        with contextlib.suppress(ArtifactError):
            used.update(sha256 for sha256, _ in _files(store, uri).values())
    return used


def _files(store: ArtifactStore, uri: str) -> dict[str, tuple[str, int]]:
    try:
        files = {
            name: ArtifactFile(str(sha256), int(size))
            for name, (sha256, size) in json.loads(store.blobs.get(uri)).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise ArtifactError(f"the converted model {uri} is damaged ({error!r}); delete that object") from None
    return {name: (file.sha256, file.size_bytes) for name, file in files.items()}
