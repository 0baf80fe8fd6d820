"""Iceberg tables through pyiceberg: one snapshot per table and night takes the old file out and puts the new one in."""

from __future__ import annotations

import datetime
import os
import random
import time
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table

from pipeline.context import Context
from pipeline.errors import StorageError
from pipeline.manifest import Manifest
from pipeline.tables import TABLES, Seen, Staged
from pipeline.tables.catalog import (
    PARTITION_COLUMN,
    check_growth,
    file_schema,
    find_table,
    make_table,
    object_uri,
    open_catalog,
    translated,
)
from pipeline.tables.joined import JoinedFile, joined
from pipeline.tables.orphans import FOLDERS, expire, remove_orphans

_ATTEMPTS = 30
_LONGEST_WAIT_S = 2.0
_NAME_MARK = "lengthwise-"
"""Begins the names of our data files; other engines give other names when they compact."""


class IcebergTables:
    """Versions are the paths of the partition's data files, which are unique and carry the run's fingerprint."""

    def look(self, context: Context) -> Seen:
        catalog = open_catalog(context)
        return {table: _visible(context, find_table(context, catalog, table)) for table in TABLES}

    def shows(self, manifest: Manifest, seen: Seen) -> bool:
        return all(_is_version(manifest.files[table], seen[table]) for table in TABLES)

    def files(self, context: Context, manifest: Manifest, table: str) -> list[str]:
        del context
        return [object_uri(file["name"]) for file in manifest.files[table]]

    def check_columns(self, context: Context, schemas: dict[str, pa.Schema]) -> None:
        """Iceberg widens types and adds columns, and refuses what could not be read from older files."""
        catalog = open_catalog(context)
        for table, columns in schemas.items():
            check_growth(context, catalog, table, columns)

    def replace(self, context: Context, staged: Staged, seen: Seen) -> dict[str, list[dict[str, Any]]]:
        """Other dates may be committed at the same time: both land. Of two runs of one date, the later one fails."""
        catalog = open_catalog(context)
        return {table: _replace_one(context, catalog, table, staged, seen[table]) for table in TABLES}

    def tidy(self, context: Context, manifest: Manifest, before: float) -> int:
        """Forget old snapshots, and remove the partition's data files that no snapshot refers to any more."""
        del manifest
        return self._tidy(context, (f"data/{PARTITION_COLUMN}={context.ds}/",), before)

    def tidy_all(self, context: Context, before: float) -> int:
        """The same for data and metadata files of all partitions."""
        return self._tidy(context, FOLDERS, before)

    def _tidy(self, context: Context, folders: tuple[str, ...], before: float) -> int:
        catalog = open_catalog(context)
        removed = 0
        for name in TABLES:
            table = find_table(context, catalog, name)
            if table is not None:
                with translated(f"Iceberg table {name}"):
                    expire(table, before)
                    location = object_uri(table.location())
                    removed += sum(remove_orphans(context, location, table.refresh, each, before) for each in folders)
        return removed


def _files(context: Context, table: Table) -> list[DataFile]:
    """The partition's data files in the current snapshot."""
    with translated(f"Iceberg table {table.name()}"):
        return [task.file for task in table.scan(f"{PARTITION_COLUMN} == '{context.ds}'").plan_files()]


def _visible(context: Context, table: Table | None) -> dict[str, Any]:
    """Path -> rows and bytes; what the object store has lost is -1 bytes."""
    seen = {}
    for file in _files(context, table) if table is not None else []:
        try:
            size_bytes = context.objects.head(object_uri(file.file_path)).size_bytes
        except FileNotFoundError:
            size_bytes = -1
        intact = size_bytes == file.file_size_in_bytes
        seen[file.file_path] = {"rows": file.record_count, "size_bytes": size_bytes if intact else -1}
    return seen


def _is_version(files: list[dict[str, Any]], seen: dict[str, Any]) -> bool:
    """Another engine may have compacted the files: then no name is ours, and the rows must add up."""
    if any(file["size_bytes"] < 0 for file in seen.values()):
        return False
    if any(os.path.basename(path).startswith(_NAME_MARK) for path in seen):
        return {file["name"] for file in files} == set(seen)
    return sum(int(file["rows"]) for file in files) == sum(int(file["rows"]) for file in seen.values())


def _replace_one(
    context: Context, catalog: Catalog, name: str, staged: Staged, seen: dict[str, Any]
) -> list[dict[str, Any]]:
    """The manifest's files of one table: one, or none for no rows."""
    columns = pq.read_schema(pa.BufferReader(context.objects.get(staged.parts[name][0].uri)))
    table = make_table(context, catalog, name, columns)
    schema = file_schema(table, columns)
    date = datetime.date.fromisoformat(context.ds)

    def with_date(part: pa.Table) -> pa.Table:
        dates = pa.array([date] * part.num_rows, pa.date32())
        return pa.Table.from_arrays([*part.columns, dates], names=schema.names).cast(schema)

    with joined(context, staged.parts[name], with_date) as content:
        about = {"rows": staged.rows[name], "size_bytes": content.size_bytes}
        if about["rows"] == 0:
            path = _swap(context, table, staged, about, None, seen)
        elif _ours(seen, staged, about):  # of an attempt that ended after it
            path = next(iter(seen))
        else:
            path = _swap(context, table, staged, about, _upload(context, table, staged, content), seen)
    return [{"name": path, "sha256": content.sha256, **about}] if path else []


def _upload(context: Context, table: Table, staged: Staged, content: JoinedFile) -> DataFile:
    """The file under a name of its own: one that was used before could be swept as an orphan of that time."""
    name = f"{_NAME_MARK}{staged.fingerprint}-{uuid.uuid4().hex}.parquet"
    path = f"{table.location()}/data/{PARTITION_COLUMN}={context.ds}/{name}"
    context.objects.put_file_if(object_uri(path), content.file, None)
    content.file.seek(0)
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=pq.read_metadata(content.file),
        stats_columns=compute_statistics_plan(table.schema(), table.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(table.schema()),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=statistics.partition(table.spec(), table.schema()),
        file_size_in_bytes=content.size_bytes,
        sort_order_id=None,
        spec_id=table.spec().spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _swap(
    context: Context, table: Table, staged: Staged, about: dict[str, int], new: DataFile | None, seen: dict[str, Any]
) -> str:
    """Commit the new file in place of those that were seen; its path, or that of an equal one that was quicker."""
    for attempt in range(_ATTEMPTS):
        with translated(f"Iceberg table {table.name()}"):
            table.refresh()
        old = _files(context, table)
        paths = {file.file_path for file in old}
        if new is not None and new.file_path in paths:
            return new.file_path  # the answer to an earlier attempt was lost
        if paths != set(seen):
            if new is not None:
                context.objects.delete(object_uri(new.file_path))
            quicker = _visible(context, table)
            if new is not None and _ours(quicker, staged, about):
                return next(iter(quicker))
            if new is None and not quicker:
                return ""
            raise StorageError(f"ds={context.ds}: another run replaced this partition at the same time; run again")
        if new is None and not old:
            return ""
        try:
            with translated(f"Iceberg table {table.name()}", passing=(CommitFailedException, ValidationException)):
                _commit(context, table, staged, old, new)
            return new.file_path if new is not None else ""
        except (CommitFailedException, ValidationException):  # of another date, most likely
            time.sleep(random.uniform(0.5, 1.0) * min(_LONGEST_WAIT_S, 0.05 * 2**attempt))  # noqa: S311 - spreads writers
    raise StorageError(f"ds={context.ds}: {_ATTEMPTS} commits of {table.name()} met others; run again")


def _commit(context: Context, table: Table, staged: Staged, old: list[DataFile], new: DataFile | None) -> None:
    properties = {"lengthwise.ds": context.ds, "lengthwise.fingerprint": staged.fingerprint}
    with table.transaction() as transaction:
        update = transaction.update_snapshot(snapshot_properties=properties)
        with update.overwrite() if old else update.merge_append() as snapshot:
            for file in old:
                snapshot.delete_data_file(file)
            if new is not None:
                snapshot.append_data_file(new)


def _ours(seen: dict[str, Any], staged: Staged, about: dict[str, int]) -> bool:
    """Whether readers see this very file already: the same fingerprint, rows and bytes."""
    names = [os.path.basename(path) for path in seen]
    return list(seen.values()) == [about] and names[0].startswith(f"{_NAME_MARK}{staged.fingerprint}-")


FORMAT = IcebergTables()
