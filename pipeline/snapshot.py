"""Step 1, snapshot: list the night's objects and pin them, before anything is read."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pipeline.context import Context
from pipeline.digests import digest
from pipeline.errors import JobError
from pipeline.generation import current_generation
from pipeline.hub_datasets import SCHEME, hub_copy
from pipeline.job import Input
from pipeline.manifest import committed
from pipeline.objects import ObjectInfo, Objects
from pipeline.sources import input_objects, source_units
from pipeline.splits import Piece, Split, Unit, gather

_GLOB = r"[*?[]"
_THREADS = 8
"""Objects that are opened at once; each takes the buffers of a reader."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The pinned input of one partition."""

    ds: str
    objects: tuple[ObjectInfo, ...]
    formats: tuple[str, ...]
    """One of the job's formats per object."""
    splits: tuple[Split, ...]
    generation: int = 0
    """How often the partition was started over before; no part of the digest."""

    @property
    def digest(self) -> str:
        """Two runs over the same objects have the same digest; the way they are cut is part of it."""
        data = self.to_json()
        del data["generation"]
        for info in data["objects"]:
            del info["stamp"]  # when a file was touched says nothing of its content
        return digest(data)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Snapshot:
        return cls(
            ds=data["ds"],
            objects=tuple(ObjectInfo(**item) for item in data["objects"]),
            formats=tuple(data["formats"]),
            splits=tuple(
                Split(item["index"], tuple(Piece(**piece) for piece in item["pieces"])) for item in data["splits"]
            ),
            generation=data.get("generation", 0),  # of an older version
        )


def take_snapshot(context: Context) -> tuple[str, Snapshot]:
    """Pin the input and store the snapshot under its digest; returns its URI and itself.

    Raises JobError when there are no input objects and the job says `when_missing: fail`.
    """
    input_uri, spec = _located(context)
    generation = current_generation(context)
    found = list_input(context.objects, input_uri)
    if not found:
        _check_missing(context, input_uri, generation)
    chosen = input_objects(context.objects, found, spec)
    objects, formats = [info for info, _ in chosen], [name for _, name in chosen]
    splits = gather(_units(context, objects, formats), spec.split_bytes, spec.split_rows)
    snapshot = Snapshot(context.ds, tuple(objects), tuple(formats), tuple(splits), generation)
    uri = context.layout.snapshot(context.ds, snapshot.digest, generation)
    context.objects.put_new(uri, json.dumps(snapshot.to_json()).encode())
    size = sum(info.size_bytes for info in objects)
    context.say(f"snapshot: {len(objects)} objects, {size / 1e6:.1f} MB, {len(splits)} splits")
    return uri, snapshot


def _located(context: Context) -> tuple[str, Input]:
    """Where the night's objects are, and what the job says of them there."""
    spec = context.job.input
    uri = spec.uri.replace("{ds}", context.ds)
    if uri.startswith(SCHEME):
        return hub_copy(context, uri), spec.model_copy(update={"format": "datasets", "split": None})
    if spec.format == "datasets" and not re.search(_GLOB, uri):
        uri = uri.rstrip("/") + "/"  # people name the folder that they saved to without a slash
    return uri, spec


def _check_missing(context: Context, input_uri: str, generation: int) -> None:
    """Raises JobError where a night without input must not be published as an empty one."""
    manifest = committed(context)
    if manifest is not None and manifest.rows and manifest.generation >= generation:
        raise JobError(
            f"{input_uri}: no input objects for ds={context.ds}, which is published with {manifest.rows:,} rows; "
            "nothing was changed. Restore the input, or give --fresh to replace the partition"
        )
    if context.job.input.when_missing == "fail":
        raise JobError(
            f"{input_uri}: no input objects for ds={context.ds}; check the URI (a folder ends in /, a glob such as "
            "…/*.jsonl matches whole names), wait for the night's data, or set input.when_missing: empty to publish an "
            "empty partition"
        )


def load_snapshot(objects: Objects, uri: str) -> Snapshot:
    return Snapshot.from_json(json.loads(objects.get(uri)))


def list_input(objects: Objects, uri: str) -> list[ObjectInfo]:
    """Objects that a URI means: a prefix ending in `/`, one object, or a glob where nothing has that very name.

    Names that start with `_` or `.` are bookkeeping of other tools, empty objects are folder markers: neither is data.
    """
    stem = re.split(_GLOB, uri, maxsplit=1)[0]

    def data(prefix: str, meant: Callable[[str], bool]) -> list[ObjectInfo]:
        folder = prefix[: prefix.rfind("/") + 1]
        wanted = objects.list_info(prefix, lambda found: meant(found) and not _hidden(found[len(folder) :]))
        return [info for info in wanted if info.size_bytes]

    named = data(uri, lambda found: uri.endswith("/") or found == uri)
    return named if named or stem == uri else data(stem, lambda found: fnmatch.fnmatchcase(found, uri))


def _hidden(relative: str) -> bool:
    return any(part.startswith(("_", ".")) for part in relative.split("/"))


def _units(context: Context, objects: list[ObjectInfo], formats: list[str]) -> Iterator[Unit]:
    """Units of all objects in order. Several are opened at once: compressed objects and CSV are read to their end."""

    def units(index: int) -> list[Unit]:
        return list(source_units(context.objects, objects[index], formats[index], index, context.job.input))

    with ThreadPoolExecutor(_THREADS) as pool:
        for found in pool.map(units, range(len(objects))):
            yield from found
