"""Plain Parquet in Hive layout: one object per table and night, replaced by one atomic and conditional write."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa

from pipeline.context import Context
from pipeline.errors import StorageError
from pipeline.manifest import Manifest
from pipeline.tables import TABLES, Seen, Staged
from pipeline.tables.joined import JoinedFile, joined

FILE = "part-00000.parquet"
"""The same name for every version: whoever lists the folder sees one of them at any time."""
_READ_BYTES = 4 << 20


class PlainTables:
    """Versions are ETags. Nothing but the file belongs into a partition's folder."""

    def check_columns(self, context: Context, schemas: dict[str, pa.Schema]) -> None:
        """A file has the columns of its night; other nights' files do not matter to it."""

    def look(self, context: Context) -> Seen:
        return {table: self._present(context, table) for table in TABLES}

    def _present(self, context: Context, table: str) -> dict[str, Any]:
        prefix = context.layout.partition(table, context.ds)
        present = {info.uri[len(prefix) :]: info.etag for info in context.objects.list_info(prefix)}
        return {name: etag for name, etag in present.items() if not name.startswith(("_", "."))}  # as readers do

    def shows(self, manifest: Manifest, seen: Seen) -> bool:
        return all(seen[table] == {file["name"]: file["etag"] for file in manifest.files[table]} for table in TABLES)

    def files(self, context: Context, manifest: Manifest, table: str) -> list[str]:
        return [context.layout.partition(table, context.ds) + file["name"] for file in manifest.files[table]]

    def replace(self, context: Context, staged: Staged, seen: Seen) -> dict[str, list[dict[str, Any]]]:
        """The first conditional write decides between two runs: the other one has changed nothing yet."""
        files = {}
        for table in TABLES:
            with joined(context, staged.parts[table]) as content:
                uri = context.layout.partition(table, context.ds) + FILE
                if not context.objects.put_file_if(uri, content.file, seen[table].get(FILE)):
                    require_same(context, uri, content)
                files[table] = [
                    {
                        "name": FILE,
                        "rows": staged.rows[table],
                        "size_bytes": content.size_bytes,
                        "sha256": content.sha256,
                        "etag": context.objects.head(uri).etag,
                    }
                ]
        return files

    def tidy(self, context: Context, manifest: Manifest, before: float) -> int:
        """Other files in the folder go at once: who lists it would count their rows, too."""
        del before
        removed = 0
        for table in TABLES:
            for name in set(self._present(context, table)) - {file["name"] for file in manifest.files[table]}:
                context.objects.delete(context.layout.partition(table, context.ds) + name)
                removed += 1
        return removed

    def tidy_all(self, context: Context, before: float) -> int:
        """Nothing lies outside of partitions."""
        del context, before
        return 0


def require_same(context: Context, uri: str, content: JoinedFile) -> None:
    """Raises StorageError unless whoever was quicker wrote these very bytes."""
    info = context.objects.head(uri)
    if info.size_bytes == content.size_bytes:
        sha = hashlib.sha256()
        with context.objects.open(info) as reader:
            while data := reader.read(_READ_BYTES):
                sha.update(data)
        if sha.hexdigest() == content.sha256:
            return
    raise StorageError(f"ds={context.ds}: another run is replacing this partition at the same time; run again")


FORMAT = PlainTables()
