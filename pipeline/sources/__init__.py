"""Input formats: how an object is cut into units and how the rows of a piece are read. Found by name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.errors import JobError
from pipeline.job import Input
from pipeline.objects import ObjectInfo, Objects
from pipeline.rejects import Reject
from pipeline.splits import Piece, Unit

FORMATS = {
    "parquet": "pipeline.sources.parquet",
    "jsonl": "pipeline.sources.lines",
    "text": "pipeline.sources.lines",
    "openai_batch": "pipeline.sources.lines",
    "csv": "pipeline.sources.csv_records",
    "tsv": "pipeline.sources.csv_records",
    "datasets": "pipeline.sources.arrow_stream",
}
EXTENSIONS = {
    ".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".csv": "csv", ".tsv": "tsv", ".txt": "text", ".text": "text",
}  # fmt: skip
COMPRESSIONS = (".gz", ".zst")


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row as it was read, or what was wrong with it; exactly one of `values` and `fault` is set."""

    row: int
    """Counted from 0 within the piece."""
    values: dict[str, Any] | None
    fault: Reject | None


class Source(Protocol):
    """One input format."""

    def units(self, objects: Objects, info: ObjectInfo, name: str, index: int, spec: Input) -> Iterator[Unit]:
        """Cut an object; checks its schema where the format has one. Raises JobError."""

    def rows(self, objects: Objects, info: ObjectInfo, name: str, piece: Piece, spec: Input) -> Iterator[SourceRow]:
        """Rows of a piece in order. Raises JobError for an object that is damaged as a whole, StorageError."""


def object_format(uri: str, declared: str) -> str:
    """The format of one object: as the job declares, or by its extension. Raises JobError for an unknown one."""
    if declared != "auto":
        return declared
    stem = uri.lower()
    for compression in COMPRESSIONS:
        stem = stem.removesuffix(compression)
    for extension, name in EXTENSIONS.items():
        if stem.endswith(extension):
            return name
    raise JobError(
        f"{uri}: no known extension; use one of {', '.join(EXTENSIONS)} (with {' or '.join(COMPRESSIONS)} if "
        f"compressed), set input.format, or narrow input.uri, for example to '*.parquet'"
    )


def input_objects(objects: Objects, found: list[ObjectInfo], spec: Input) -> list[tuple[ObjectInfo, str]]:
    """The night's objects, each with its format; of saved datasets only what belongs to them. Raises JobError."""
    from pipeline.sources.saved_datasets import holds_datasets, outside_datasets, saved_objects

    if spec.format not in ("auto", "datasets") or not (spec.format == "datasets" or holds_datasets(found)):
        if spec.split is not None and found:
            raise JobError(f"{found[0].uri}: input.split is {spec.split!r}, but this is no saved dataset; remove it")
        return [(info, object_format(info.uri, spec.format)) for info in found]
    others = outside_datasets(found)
    if others and spec.format == "datasets":
        raise JobError(f"{others[0].uri}: not part of a dataset saved with save_to_disk; narrow input.uri")
    datasets = [(info, "datasets") for info in saved_objects(objects, found, spec)]
    return datasets + [(info, object_format(info.uri, "auto")) for info in others]


def source_units(objects: Objects, info: ObjectInfo, name: str, index: int, spec: Input) -> Iterator[Unit]:
    return _source(name).units(objects, info, name, index, spec)


def source_rows(objects: Objects, info: ObjectInfo, name: str, piece: Piece, spec: Input) -> Iterator[SourceRow]:
    return _source(name).rows(objects, info, name, piece, spec)


def _source(name: str) -> Source:
    source: Source = importlib.import_module(FORMATS[name]).source
    return source
