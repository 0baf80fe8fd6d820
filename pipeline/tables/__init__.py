"""Table formats: how a partition's staged parts become what readers query, whole or not at all. Found by name."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.context import Context
from pipeline.job import Job
from pipeline.layout import BATCH_FILES
from pipeline.manifest import Manifest

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = {"parquet": "pipeline.tables.plain", "iceberg": "pipeline.tables.iceberg"}
TABLES = ("predictions", "rejects")

Seen = dict[str, dict[str, Any]]
"""Table -> what readers see of the partition now: name of each file -> its version."""


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What the publish step wrote for one split, and its digest."""

    uri: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Staged:
    """The parts of a run that wait to become the partition, by split."""

    fingerprint: str
    parts: dict[str, list[StagedPart]]
    """Table, or file of the Batch API -> one per split, at least one."""
    rows: dict[str, int]


class TableFormat(Protocol):
    """Both tables of a partition are one file each; a table is replaced atomically, the two one after the other."""

    def check_columns(self, context: Context, schemas: dict[str, pa.Schema]) -> None:
        """Raises JobError when a table that is there cannot get the columns of a changed job."""

    def look(self, context: Context) -> Seen:
        """What readers see now. Raises StorageError."""

    def shows(self, manifest: Manifest, seen: Seen) -> bool:
        """Whether that is exactly the manifest's version, with every file there."""

    def files(self, context: Context, manifest: Manifest, table: str) -> list[str]:
        """URIs of the files of one table, in the object store."""

    def replace(self, context: Context, staged: Staged, seen: Seen) -> dict[str, list[dict[str, Any]]]:
        """Make the staged parts what readers see; returns the manifest's `files`. Again after a crash: the same end.

        Raises StorageError when another run replaced what was seen meanwhile, unless it wrote the same content, and
        FileNotFoundError for a part that is gone.
        """

    def tidy(self, context: Context, manifest: Manifest, before: float) -> int:
        """Remove what earlier versions of the partition left, where no reader can need it: how many objects.

        `before`, epoch seconds, is when the oldest reader that is still reading may have begun.
        """

    def tidy_all(self, context: Context, before: float) -> int:
        """The same for what belongs to no partition."""


def table_format(context: Context) -> TableFormat:
    """The format that the job names."""
    found: TableFormat = importlib.import_module(FORMATS[context.job.output.table]).FORMAT
    if not context.job.input.is_batch_api:
        return found
    from pipeline.tables.batch_files import WithBatchFiles

    return WithBatchFiles(found)


def staged_names(job: Job) -> tuple[str, ...]:
    """What the publish step stages a part of for every split."""
    return (*TABLES, *BATCH_FILES) if job.input.is_batch_api else TABLES
