"""What a SageMaker archive holds, to the byte: one artifact of target neuron, the code that serves it, its origin.

The bytes depend on the artifact and the code alone: entries are sorted, and have no owner and no time.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import json
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from compile.artifacts import ArtifactStore, Manifest
from compile.errors import ArtifactError
from compile.shapes import Shape, canonical_json
from pipeline.errors import JobError, StorageError
from pipeline.objects import Objects

TARGET = "neuron"
CODE = "code/inference.py"
ORIGIN = "lengthwise.json"
"""Which artifact it is: read by `deploy`. It sorts before the model, so that little of an archive is read for it."""
_CODE_MODULE = "compile.targets.neuron_inference"
_LEFT_OUT = ("compile.log",)
"""Of no use to an endpoint, and it names folders of the host that compiled."""
_LEVEL = 1
"""Of gzip: weights do not compress, and a higher level takes minutes a gigabyte for the rest."""


def choose(manifests: Sequence[Manifest], shape: Shape | None) -> Manifest:
    """The artifact to serve when no key was given: of that shape, else of the longest, which takes every text.

    Raises JobError that lists the choices when that is not exactly one.
    """
    served = [each for each in manifests if each.spec.target == TARGET and each.unfit(each.spec) is None]
    longest = max((each.spec.shape.length for each in served), default=0)
    found = [each for each in served if each.spec.shape == shape or (not shape and each.spec.shape.length == longest)]
    if len(found) == 1:
        return found[0]
    wanted = f"of shape {shape}" if shape else f"of the longest length, {longest}"
    choices = "\n".join(f"  {each.key} {each.spec.shape} {each.spec.precision}" for each in found or served)
    raise JobError(
        f"there are {len(found)} proven artifacts of target {TARGET} {wanted}; name one by its key"
        + (f":\n{choices}" if choices else ", after lengthwise compile built it")
    )


def package(store: ArtifactStore, manifest: Manifest, objects: Objects, uri: str) -> dict[str, Any]:
    """Write an artifact's archive to a URI, whole and at once. Returns what it is: uri, sha256, artifact, shape, ...

    Raises ArtifactError for one that is damaged or not proven, JobError for one that no SageMaker endpoint can serve.
    """
    _check(manifest)
    with store.directory(manifest) as directory, tempfile.TemporaryFile() as file:
        names = write_archive(directory, manifest, file)
        size_bytes = file.tell()
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        etag = objects.head(uri).etag if objects.exists(uri) else None
        if not objects.put_file_if(uri, file, etag):
            raise StorageError(f"{uri} was written by somebody else meanwhile; run again")
    spec = manifest.spec
    shown = {"uri": uri, "sha256": sha256, "size_bytes": size_bytes, "artifact": manifest.key, "shape": str(spec.shape)}
    return {**shown, "instance_type": dict(spec.options).get("instance_type"), "files": names}


def write_archive(directory: Path, manifest: Manifest, file: IO[bytes]) -> list[str]:
    """A tar file, gzip: the artifact's files, CODE and ORIGIN. Returns the sorted names."""
    code = importlib.util.find_spec(_CODE_MODULE)  # not imported: it sets variables of the process that serves
    assert code is not None
    assert code.origin is not None
    origin = canonical_json({"artifact": manifest.key, "spec": manifest.spec.to_json()})
    paths = {name: directory / name for name in manifest.files if name not in _LEFT_OUT}
    sources: dict[str, Path | bytes] = {**paths, CODE: Path(code.origin), ORIGIN: origin}
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name, source in sorted(sources.items()):
            with source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as content:
                entry = tarfile.TarInfo(name)
                entry.size = source.stat().st_size if isinstance(source, Path) else len(source)
                archive.addfile(entry, content)
    return sorted(sources)


def origin_of(objects: Objects, uri: str) -> dict[str, Any]:
    """{artifact, spec} of an archive that `package` made. Raises JobError for any other object."""
    try:
        with objects.open(objects.head(uri)) as file, tarfile.open(fileobj=file, mode="r|gz") as archive:
            for entry in archive:
                content = archive.extractfile(entry) if entry.name == ORIGIN else None
                if content is not None:
                    found: dict[str, Any] = json.loads(content.read())
                    return found
    except FileNotFoundError:
        raise JobError(f"there is no archive {uri}; make it with: lengthwise package JOB --to {uri}") from None
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise JobError(f"{uri} is no archive that lengthwise package made: {error}") from None
    raise JobError(f"{uri} is no archive that lengthwise package made: it has no {ORIGIN}")


def _check(manifest: Manifest) -> None:
    spec = manifest.spec
    reason = manifest.unfit(spec)
    if reason:
        raise ArtifactError(
            f"artifact {manifest.key} cannot be packaged: {reason}; prove it with `lengthwise compile --verify`"
        )
    graphs = [name for name in manifest.files if name.endswith(".neuron")]
    if spec.target != TARGET or len(graphs) != 1:
        raise JobError(
            f"artifact {manifest.key} ({spec.target}, {spec.shape}) cannot be packaged: SageMaker archives are of "
            f"sequence classifiers of target {TARGET}, with one graph"
        )
