"""What identifies an artifact and where it lies: one manifest per key, over blobs that are named by their content."""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import json
import sys
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compile.blobs import Blobs
from compile.cache import DiskCache
from compile.errors import ArtifactError
from compile.model import ModelInfo, file_digest
from compile.parity import ParityRecord
from compile.shapes import Shape, canonical_json
from compile.targets import Executable, Target

CACHE_BYTES = 8 << 30
GRACE_S = 86400.0
FORMAT = 1
"""Of manifests and of the way artifacts are made; raising it makes every key new."""

BUILD = "build it with `lengthwise compile`"


@dataclass(frozen=True, slots=True)
class ArtifactSpec:
    """Everything that can change an artifact's bytes or its results."""

    model_digest: str
    target: str
    precision: str
    versions: tuple[tuple[str, str], ...]
    """Package versions of the toolchain, sorted by name."""
    machine: str
    """Machine kind that the code is tied to; empty when it runs anywhere."""
    options: tuple[tuple[str, str], ...]
    shape: Shape

    @property
    def key(self) -> str:
        """32 hex characters of the sha256 of the canonical JSON."""
        return hashlib.sha256(canonical_json(self.to_json())).hexdigest()[:32]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "model_digest": self.model_digest,
            "target": self.target,
            "precision": self.precision,
            "versions": dict(self.versions),
            "machine": self.machine,
            "options": dict(self.options),
            "shape": str(self.shape),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ArtifactSpec:
        return cls(
            model_digest=data["model_digest"],
            target=data["target"],
            precision=data["precision"],
            versions=tuple(sorted(data["versions"].items())),
            machine=data["machine"],
            options=tuple(sorted(data["options"].items())),
            shape=Shape.parse(data["shape"]),
        )


def artifact_spec(target: Target, model: ModelInfo, shape: Shape, precision: str) -> ArtifactSpec:
    """The artifact that this machine would build and load for one shape of a model."""
    return ArtifactSpec(
        model_digest=model.digest,
        target=target.name,
        precision=precision,
        versions=tuple(sorted(target.versions().items())),
        machine=target.machine(),
        options=tuple(sorted(target.options(precision).items())),
        shape=shape,
    )


@dataclass(frozen=True, slots=True)
class BatchTiming:
    """Seconds of one execution of the graph, measured when it was built."""

    median_s: float
    min_s: float
    max_s: float
    repeats: int


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """One file of an artifact; its content is the blob of that digest."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a key stands for. Written last and once, so that an artifact either is complete or does not exist."""

    spec: ArtifactSpec
    files: dict[str, ArtifactFile]
    """File name -> content."""
    compile_seconds: float
    timing: BatchTiming | None
    parity: ParityRecord | None
    """None while pending; such an artifact cannot be loaded."""
    created_by: dict[str, str]
    """Versions of what built it, for people; the versions that bind are the spec's."""

    @property
    def key(self) -> str:
        return self.spec.key

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())

    def unfit(self, spec: ArtifactSpec) -> str | None:
        """Why it may not be loaded for `spec`, in a sentence; None when it may. This is the parity gate."""
        if self.spec != spec:
            return f"its manifest describes another artifact ({self.spec.key}: {_differences(self.spec, spec)})"
        if self.parity is None:
            return "its parity with the fp32 reference was not checked yet"
        if self.parity.versions != dict(spec.versions):
            return f"its parity record is from other versions: {self.parity.versions} instead of {dict(spec.versions)}"
        if not self.parity.passed:
            return f"its parity record did not pass: {'; '.join(self.parity.reasons)}"
        return None

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "spec": self.spec.to_json(),
            "files": {name: asdict(file) for name, file in sorted(self.files.items())},
            "compile_seconds": self.compile_seconds,
            "timing": asdict(self.timing) if self.timing else None,
            "parity": self.parity.to_json() if self.parity else None,
            "created_by": self.created_by,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Manifest:
        return cls(
            spec=ArtifactSpec.from_json(data["spec"]),
            files={name: ArtifactFile(**file) for name, file in data["files"].items()},
            compile_seconds=float(data["compile_seconds"]),
            timing=BatchTiming(**data["timing"]) if data["timing"] else None,
            parity=ParityRecord.from_json(data["parity"]) if data["parity"] else None,
            created_by=dict(data["created_by"]),
        )


@dataclass(frozen=True, slots=True)
class Collected:
    """What a `gc` did."""

    artifacts: tuple[str, ...]
    """Keys whose manifests were deleted."""
    blobs: tuple[str, ...]
    """Digests of deleted blobs."""
    waiting: tuple[str, ...]
    """Digests of unused blobs whose grace has not passed."""


class ArtifactStore:
    """Artifacts in an object store, read through a cache on the local disk. Safe for any number of processes."""

    def __init__(self, blobs: Blobs, uri: str, cache_dir: Path, cache_bytes: int = CACHE_BYTES) -> None:
        self.uri = uri.rstrip("/")
        self.blobs = blobs
        self.cache = DiskCache(blobs, f"{self.uri}/blobs", cache_dir, cache_bytes)

    def manifest(self, key: str) -> Manifest | None:
        """The manifest of a key, None when there is none. Raises ArtifactError when it cannot be read."""
        try:
            data = self.blobs.get(self._manifest_uri(key))
        except FileNotFoundError:
            return None
        try:
            manifest = Manifest.from_json(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(
                f"the manifest of artifact {key} is damaged ({error!r}); remove it and {BUILD}"
            ) from None
        if manifest.key != key:
            raise ArtifactError(f"the manifest of artifact {key} describes {manifest.key}; remove it and {BUILD}")
        return manifest

    def exists(self, key: str) -> bool:
        """Whether there is a manifest, readable or not."""
        return self.blobs.exists(self._manifest_uri(key))

    def check(self, spec: ArtifactSpec) -> Manifest:
        """The manifest of an artifact that exists whole and passed parity. Raises ArtifactError with what is wrong.

        Reads the manifest and asks for the files' existence, not their content: `load` and `verify` read that.
        """
        manifest = self.manifest(spec.key)
        if manifest is None:
            raise ArtifactError(f"{_title(spec)} does not exist in {self.uri}; {BUILD}")
        reason = manifest.unfit(spec)
        if reason:
            raise ArtifactError(f"{_title(spec)} cannot be used: {reason}; {BUILD}")
        gone = [name for name, file in manifest.files.items() if not self.blobs.exists(self._blob_uri(file.sha256))]
        if gone:
            raise ArtifactError(f"{_title(spec)} has lost {', '.join(gone)} in {self.uri}; {BUILD}")
        return manifest

    def load(self, spec: ArtifactSpec, target: Target) -> Executable:
        """Load without compiling. Raises ArtifactError when it is missing, damaged, of other versions or not proven."""
        manifest = self.manifest(spec.key)
        if manifest is None:
            raise ArtifactError(f"{_title(spec)} does not exist in {self.uri}; {BUILD}")
        reason = manifest.unfit(spec) or _foreign(spec, target)
        if reason:
            raise ArtifactError(f"{_title(spec)} cannot be used: {reason}; {BUILD}")
        files = {name: (file.sha256, file.size_bytes) for name, file in manifest.files.items()}
        try:
            with self.cache.directory(files) as directory:
                return target.load(directory, spec.shape, spec.precision)
        except ArtifactError as error:
            raise ArtifactError(f"{_title(spec)} cannot be used: {error}; {BUILD}") from error

    def publish(
        self,
        spec: ArtifactSpec,
        directory: Path,
        *,
        compile_seconds: float,
        timing: BatchTiming | None,
        parity: ParityRecord | None,
    ) -> Manifest:
        """Store a directory's files, then its manifest, once. Who comes second gets the first one's manifest."""
        manifest = Manifest(
            spec=spec,
            files={path.name: _artifact_file(path) for path in sorted(directory.iterdir())},
            compile_seconds=compile_seconds,
            timing=timing,
            parity=parity,
            created_by={"python": sys.version.split()[0], **dict(spec.versions)},
        )
        self._upload(manifest, directory)
        if self.blobs.put_new(self._manifest_uri(spec.key), canonical_json(manifest.to_json())):
            self._upload(manifest, directory)  # a collection may have taken blobs that had no manifest yet
            return manifest
        return self.manifest(spec.key) or manifest

    def keys(self) -> list[str]:
        """Every key that has a manifest, readable or not, sorted."""
        return [uri.rsplit("/", 1)[1].removesuffix(".json") for uri in self.blobs.list(f"{self.uri}/manifests/")]

    def list(self) -> list[Manifest]:
        """Every readable manifest, by key."""
        found = []
        for key in self.keys():
            try:
                manifest = self.manifest(key)
            except ArtifactError:
                continue  # `verify` names what is wrong with it
            if manifest is not None:
                found.append(manifest)
        return found

    def verify(self, key: str) -> builtins.list[str]:
        """What is wrong with an artifact, one sentence each, after reading all of its bytes; empty when it is sound."""
        try:
            manifest = self.manifest(key)
        except ArtifactError as error:
            return [str(error)]
        if manifest is None:
            return [f"artifact {key} does not exist in {self.uri}"]
        wrong = [reason for reason in [manifest.unfit(manifest.spec)] if reason]
        for name, file in manifest.files.items():
            try:
                data = self.blobs.get(self._blob_uri(file.sha256))
            except FileNotFoundError:
                wrong.append(f"{name} is missing: there is no blob {file.sha256}")
                continue
            if hashlib.sha256(data).hexdigest() != file.sha256:
                wrong.append(f"{name} is damaged: blob {file.sha256} has other bytes")
        return wrong

    def remove(self, key: str) -> None:
        """Delete a manifest and blobs of it that are damaged; `gc` frees the sound ones, which others may share."""
        try:
            manifest = self.manifest(key)
        except ArtifactError:
            manifest = None
        self.blobs.delete(self._manifest_uri(key))
        for file in manifest.files.values() if manifest else ():
            uri = self._blob_uri(file.sha256)
            with contextlib.suppress(FileNotFoundError):
                if hashlib.sha256(self.blobs.get(uri)).hexdigest() != file.sha256:
                    self.blobs.delete(uri)

    def gc(self, keep: Collection[str], now_s: float, grace_s: float = GRACE_S) -> Collected:
        """Delete all artifacts but `keep`, and blobs that no artifact has used since a `gc` at least `grace_s` ago.

        The grace is for builders at work: they store blobs first and the manifest last. `now_s` is Unix time.
        """
        dropped = [key for key in self.keys() if key not in keep]
        for key in dropped:
            self.blobs.delete(self._manifest_uri(key))
        stored = {uri.rsplit("/", 1)[1] for uri in self.blobs.list(f"{self.uri}/blobs/")}
        unused = stored - {file.sha256 for manifest in self.list() for file in manifest.files.values()}
        since = {sha256: seen for sha256, seen in self._unused_since().items() if sha256 in unused}
        expired = sorted(sha256 for sha256 in unused if now_s - since.get(sha256, now_s) >= grace_s)
        for sha256 in expired:
            self.blobs.delete(self._blob_uri(sha256))
        waiting = {sha256: since.get(sha256, now_s) for sha256 in sorted(unused.difference(expired))}
        self.blobs.put(f"{self.uri}/unused.json", canonical_json(waiting))
        return Collected(tuple(dropped), tuple(expired), tuple(waiting))

    def _unused_since(self) -> dict[str, float]:
        try:
            return {
                sha256: float(seen) for sha256, seen in json.loads(self.blobs.get(f"{self.uri}/unused.json")).items()
            }
        except (FileNotFoundError, ValueError):
            return {}

    def _upload(self, manifest: Manifest, directory: Path) -> None:
        for name, file in manifest.files.items():
            uri = self._blob_uri(file.sha256)
            if not self.blobs.exists(uri):
                self.blobs.upload_new(directory / name, uri)

    def _manifest_uri(self, key: str) -> str:
        return f"{self.uri}/manifests/{key}.json"

    def _blob_uri(self, sha256: str) -> str:
        return f"{self.uri}/blobs/{sha256}"


def _artifact_file(path: Path) -> ArtifactFile:
    return ArtifactFile(sha256=file_digest(path), size_bytes=path.stat().st_size)


def _title(spec: ArtifactSpec) -> str:
    return f"artifact {spec.key} ({spec.target} {spec.precision}, shape {spec.shape})"


def _foreign(spec: ArtifactSpec, target: Target) -> str | None:
    """Why this process must not load a spec that was made elsewhere: code and numbers are tied to both."""
    if dict(spec.versions) != target.versions():
        return f"it is for versions {dict(spec.versions)}, and this process has {target.versions()}"
    if spec.machine != target.machine():
        return f"it is for machines of kind {spec.machine}, and this is {target.machine()}"
    return None


def _differences(found: ArtifactSpec, wanted: ArtifactSpec) -> str:
    other = wanted.to_json()
    changed = [name for name, value in found.to_json().items() if value != other[name]]
    return ", ".join(f"{name} {found.to_json()[name]} instead of {other[name]}" for name in changed)
