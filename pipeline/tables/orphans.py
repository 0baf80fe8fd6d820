"""Which objects of an Iceberg table may go: those that no snapshot refers to, once nobody can need them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from pipeline.context import Context
from pipeline.tables.catalog import object_uri

FOLDERS = ("data/", "metadata/")


def expire(table: Table, before: float) -> None:
    """Forget the snapshots made before that epoch second, except the newest one and those with a branch or a tag."""
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    old = [
        snapshot.snapshot_id
        for snapshot in table.snapshots()
        if snapshot.timestamp_ms < before * 1000 and snapshot.snapshot_id not in kept
    ]
    if old:
        with contextlib.suppress(CommitFailedException):  # another writer was quicker; the next night does it
            table.maintenance.expire_snapshots().by_ids(old).commit()


def remove_orphans(context: Context, location: str, load: Callable[[], Table], folder: str, before: float) -> int:
    """Delete what lies under a folder of the table, was written before that epoch second and is not referred to.

    Young objects stay: a commit that is going on refers to them in a moment. The table is loaded after the listing,
    so that whatever was listed and committed meanwhile is found referred to. Data file names are never used twice.
    """
    modified = context.objects.list_modified(f"{location}/{folder}")
    old = {uri for uri, when in modified.items() if when < before}
    orphans = old - set(referred(load())) if old else set()
    for uri in orphans:
        context.objects.delete(uri)
    return len(orphans)


def referred(table: Table) -> Iterator[str]:
    """URI of every object that the table's metadata and its snapshots need; some more than once."""
    yield object_uri(table.metadata_location)
    for entry in table.metadata.metadata_log:
        yield object_uri(entry.metadata_file)
    for statistics in (*table.metadata.statistics, *table.metadata.partition_statistics):
        yield object_uri(statistics.statistics_path)
    seen = set()
    for snapshot in table.snapshots():
        yield object_uri(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield object_uri(manifest.manifest_path)
                for file in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    yield object_uri(file.data_file.file_path)
