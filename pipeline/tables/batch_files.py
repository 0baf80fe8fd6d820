"""The Batch API's output and error files beside the two tables: replaced after them, each by one conditional write."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import pyarrow as pa

from pipeline.context import Context
from pipeline.layout import BATCH_FILES, BATCH_TABLE
from pipeline.manifest import Manifest
from pipeline.tables import Seen, Staged, StagedPart, TableFormat
from pipeline.tables.joined import JoinedFile, read_part
from pipeline.tables.plain import require_same


@dataclass(frozen=True, slots=True)
class WithBatchFiles:
    """See pipeline.tables.TableFormat: another format, and these files under the name BATCH_TABLE."""

    tables: TableFormat

    def check_columns(self, context: Context, schemas: dict[str, pa.Schema]) -> None:
        self.tables.check_columns(context, schemas)

    def look(self, context: Context) -> Seen:
        prefix = context.layout.partition(BATCH_TABLE, context.ds)
        present = {info.uri[len(prefix) :]: info.etag for info in context.objects.list_info(prefix)}
        own = {name: etag for name, etag in present.items() if name in BATCH_FILES}
        return {**self.tables.look(context), BATCH_TABLE: own}

    def shows(self, manifest: Manifest, seen: Seen) -> bool:
        own = {file["name"]: file["etag"] for file in manifest.files.get(BATCH_TABLE, [])}
        return seen[BATCH_TABLE] == own and self.tables.shows(manifest, seen)

    def files(self, context: Context, manifest: Manifest, table: str) -> list[str]:
        return self.tables.files(context, manifest, table)

    def replace(self, context: Context, staged: Staged, seen: Seen) -> dict[str, list[dict[str, Any]]]:
        """The tables first: there it is decided between two runs."""
        files = self.tables.replace(context, staged, seen)
        files[BATCH_TABLE] = []
        for name in BATCH_FILES:
            uri = context.layout.partition(BATCH_TABLE, context.ds) + name
            with _joined_lines(context, staged.parts[name]) as content:
                if not context.objects.put_file_if(uri, content.file, seen[BATCH_TABLE].get(name)):
                    require_same(context, uri, content)
            about = {"name": name, "rows": staged.rows[name], "size_bytes": content.size_bytes}
            etag = context.objects.head(uri).etag
            files[BATCH_TABLE].append({**about, "sha256": content.sha256, "etag": etag})
        return files

    def tidy(self, context: Context, manifest: Manifest, before: float) -> int:
        return self.tables.tidy(context, manifest, before)

    def tidy_all(self, context: Context, before: float) -> int:
        return self.tables.tidy_all(context, before)


@contextmanager
def _joined_lines(context: Context, parts: list[StagedPart]) -> Iterator[JoinedFile]:
    """The parts end to end, as pipeline.tables.joined does it. Raises FileNotFoundError for a missing one."""
    context.cache_dir.mkdir(parents=True, exist_ok=True)
    sha256, size_bytes = hashlib.sha256(), 0
    with tempfile.TemporaryFile(dir=context.cache_dir) as file:
        for part in parts:
            data = read_part(context, part)
            file.write(data)
            sha256.update(data)
            size_bytes += len(data)
        yield JoinedFile(cast(BinaryIO, file), size_bytes, sha256.hexdigest())
