"""What identifies an artifact and where it lies: one manifest per key, over blobs that are named by their content."""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from compile.blobs import Blobs
from compile.cache import DiskCache
from compile.errors import ArtifactError
from compile.model import ModelInfo, file_digest
from compile.parity import ParityRecord
from compile.shapes import Shape, canonical_json
from compile.targets import AnyTarget, Loaded

CACHE_BYTES = 8 << 30
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


def artifact_spec(target: AnyTarget[Any], model: ModelInfo, shape: Shape, precision: str) -> ArtifactSpec:
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
    """Seconds of one execution of the graph, measured when it was built, and of loading it."""

    median_s: float
    min_s: float
    max_s: float
    repeats: int
    load_s: float = 0.0
    """What a worker pays once a night for having the shape at all; 0 where it was not measured."""
    yardstick_s: float = 0.0
    """Seconds of compile.yardstick's work at the same time; 0 where the target is no CPU."""


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
    """File name, with `/` for files in folders -> content."""
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
            return "its parity is pending: it was compiled where its device was not there"
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
            files={_within(name): ArtifactFile(**file) for name, file in data["files"].items()},
            compile_seconds=float(data["compile_seconds"]),
            timing=BatchTiming(**data["timing"]) if data["timing"] else None,
            parity=ParityRecord.from_json(data["parity"]) if data["parity"] else None,
            created_by=dict(data["created_by"]),
        )


class ArtifactStore:
    """Artifacts in an object store, read through a cache on the local disk. Safe for any number of processes."""

    def __init__(self, blobs: Blobs, uri: str, cache_dir: Path, cache_bytes: int = CACHE_BYTES) -> None:
        self.uri = uri.rstrip("/")
        self.blobs = blobs
        self.cache = DiskCache(blobs, f"{self.uri}/blobs", cache_dir, cache_bytes)

    def manifest(self, key: str) -> Manifest | None:
        """The manifest of a key, None when there is none. Raises ArtifactError when it cannot be read."""
        try:
            data = self.blobs.get(self.manifest_uri(key))
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
        return self._with_proof(manifest) if manifest.parity is None else manifest

    def _with_proof(self, manifest: Manifest) -> Manifest:
        """A pending manifest with what a later proof of the same files recorded, if there is one that can be read."""
        try:
            found = json.loads(self.blobs.get(self.proof_uri(manifest)))
            parity, timing = ParityRecord.from_json(found["parity"]), BatchTiming(**found["timing"])
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return manifest
        return replace(manifest, parity=parity, timing=timing)

    def pending(self, spec: ArtifactSpec) -> Manifest | None:
        """The artifact of a spec, when it is whole and lacks nothing but its proof."""
        try:
            manifest = self.manifest(spec.key)
        except ArtifactError:
            return None
        if manifest is None or manifest.spec != spec or manifest.parity is not None:
            return None
        return None if self._gone(manifest) else manifest

    def record_proof(self, manifest: Manifest, parity: ParityRecord, timing: BatchTiming) -> Manifest:
        """Keep, once, that a pending artifact passed; who comes second gets the first one's record."""
        proof = {"parity": parity.to_json(), "timing": asdict(timing)}
        self.blobs.put_new(self.proof_uri(manifest), canonical_json(proof))
        return self._with_proof(manifest)

    def exists(self, key: str) -> bool:
        """Whether there is a manifest, readable or not."""
        return self.blobs.exists(self.manifest_uri(key))

    def check(self, spec: ArtifactSpec) -> Manifest:
        """The manifest of an artifact that exists whole and passed parity. Raises ArtifactError with what is wrong.

        Reads the manifest and asks for the files' existence, not their content: `load` and `verify` read that.
        """
        manifest = self.manifest(spec.key)
        if manifest is None:
            raise ArtifactError(f"{_title(spec)} does not exist in {self.uri}; {BUILD}")
        reason = manifest.unfit(spec)
        if reason:
            raise ArtifactError(f"{_title(spec)} cannot be used: {reason}; {_advice(manifest)}")
        gone = self._gone(manifest)
        if gone:
            raise ArtifactError(f"{_title(spec)} has lost {', '.join(gone)} in {self.uri}; {BUILD}")
        return manifest

    def load(self, spec: ArtifactSpec, target: AnyTarget[Loaded]) -> Loaded:
        """Load without compiling. Raises ArtifactError when it is missing, damaged, of other versions or not proven."""
        manifest = self.manifest(spec.key)
        if manifest is None:
            raise ArtifactError(f"{_title(spec)} does not exist in {self.uri}; {BUILD}")
        reason = manifest.unfit(spec) or _foreign(spec, target)
        if reason:
            raise ArtifactError(f"{_title(spec)} cannot be used: {reason}; {_advice(manifest)}")
        try:
            with self.directory(manifest) as directory:
                return target.load(directory, spec.shape, spec.precision)
        except ArtifactError as error:
            raise ArtifactError(f"{_title(spec)} cannot be used: {error}; {BUILD}") from error

    def directory(self, manifest: Manifest) -> contextlib.AbstractContextManager[Path]:
        """A local folder that holds an artifact's files while the context lasts. Raises ArtifactError on entering."""
        return self.cache.directory({name: (file.sha256, file.size_bytes) for name, file in manifest.files.items()})

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
            files=artifact_files(directory),
            compile_seconds=compile_seconds,
            timing=timing,
            parity=parity,
            created_by={"python": sys.version.split()[0], **dict(spec.versions)},
        )
        self._upload(manifest, directory)
        if self.blobs.put_new(self.manifest_uri(spec.key), canonical_json(manifest.to_json())):
            self._upload(manifest, directory)  # a collection may have taken blobs that had no manifest yet
            return manifest
        return self.manifest(spec.key) or manifest

    def artifact_keys(self) -> list[str]:
        """Every key that has a manifest, readable or not, sorted."""
        return [uri.rsplit("/", 1)[1].removesuffix(".json") for uri in self.blobs.list(f"{self.uri}/manifests/")]

    def list(self) -> list[Manifest]:
        """Every readable manifest, by key."""
        found = []
        for key in self.artifact_keys():
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
                data = self.blobs.get(self.blob_uri(file.sha256))
            except FileNotFoundError:
                wrong.append(f"{name} is missing: there is no blob {file.sha256}")
                continue
            if hashlib.sha256(data).hexdigest() != file.sha256:
                wrong.append(f"{name} is damaged: blob {file.sha256} has other bytes")
        return wrong

    def remove(self, key: str) -> None:
        """Delete a manifest and those of its blobs that are damaged; `compile.upkeep.gc` frees sound ones."""
        try:
            manifest = self.manifest(key)
        except ArtifactError:
            manifest = None
        self.forget(key)
        for file in manifest.files.values() if manifest else ():
            uri = self.blob_uri(file.sha256)
            with contextlib.suppress(FileNotFoundError):
                if hashlib.sha256(self.blobs.get(uri)).hexdigest() != file.sha256:
                    self.blobs.delete(uri)

    def forget(self, key: str) -> None:
        """Delete a manifest and its proofs."""
        self.blobs.delete(self.manifest_uri(key))
        for uri in self.blobs.list(f"{self.uri}/proofs/{key}/"):
            self.blobs.delete(uri)

    def _gone(self, manifest: Manifest) -> builtins.list[str]:
        """Names of files whose blobs the store has lost."""
        return [name for name, file in manifest.files.items() if not self.blobs.exists(self.blob_uri(file.sha256))]

    def _upload(self, manifest: Manifest, directory: Path) -> None:
        for name, file in manifest.files.items():
            self.upload_blob(directory / name, file.sha256)

    def upload_blob(self, path: Path, sha256: str) -> None:
        """Store a file's content under its digest, unless it is there."""
        if not self.blobs.exists(self.blob_uri(sha256)):
            self.blobs.upload_new(path, self.blob_uri(sha256))

    def manifest_uri(self, key: str) -> str:
        """Where the manifest of a key lies."""
        return f"{self.uri}/manifests/{key}.json"

    def proof_uri(self, manifest: Manifest) -> str:
        """Where the proof of a pending artifact lies: it is of its very files, and of no others under that key."""
        files = canonical_json({name: file.sha256 for name, file in manifest.files.items()})
        return f"{self.uri}/proofs/{manifest.key}/{hashlib.sha256(files).hexdigest()[:32]}.json"

    def blob_uri(self, sha256: str) -> str:
        """Where content of that digest lies."""
        return f"{self.uri}/blobs/{sha256}"


def artifact_files(directory: Path) -> dict[str, ArtifactFile]:
    """Digest and size of every file below a directory, by its path from there; empty folders do not count."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {
        path.relative_to(directory).as_posix(): ArtifactFile(file_digest(path), path.stat().st_size) for path in paths
    }


def _within(name: str) -> str:
    """A file's name in an artifact. Raises ValueError for one that would lie outside of it."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or str(path) != name or name == ".":
        raise ValueError(f"file name {name!r} does not lie within the artifact")
    return name


def _advice(manifest: Manifest) -> str:
    return BUILD if manifest.parity else "prove it with `lengthwise compile --verify` on a host with the device"


def _title(spec: ArtifactSpec) -> str:
    return f"artifact {spec.key} ({spec.target} {spec.precision}, shape {spec.shape})"


def _foreign(spec: ArtifactSpec, target: AnyTarget[Any]) -> str | None:
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
