"""What a retry of rejects is: the rejected rows of a published partition run again and joined with the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.columns import rejects_table_schema
from pipeline.context import Context
from pipeline.errors import JobError, StorageError
from pipeline.manifest import Manifest, committed
from pipeline.models import job_model
from pipeline.run_plan import RunPlan
from pipeline.snapshot import Snapshot
from pipeline.tables import table_format

MAY_CHANGE = ("max_length", "truncation", "target")
"""Output fields of the job that may differ from those of the published run; others decide about rows that stay."""


def retriable(context: Context, snapshot: Snapshot) -> Manifest:
    """The published version whose rejects can be run again over this snapshot.

    Raises JobError when nothing is published, or when the rows that stay would not be those of the job and the input.
    """
    manifest = committed(context)
    again = f"run: lengthwise run JOB --ds {context.ds}"
    if manifest is None or not manifest.origin:
        raise JobError(f"ds={context.ds} is not published by this version, so there are no rejects to retry; {again}")
    if manifest.origin["snapshot"] != snapshot.digest:
        raise JobError(
            f"ds={context.ds}: the input is not what was published: objects were added, removed or replaced, and a "
            f"retry would mix two inputs. For the whole night {again}"
        )
    fields, before = context.job.output_fields(), manifest.origin["job"]
    changed = [name for name in fields if fields[name] != before.get(name) and name not in MAY_CHANGE]
    if manifest.origin["model"] != job_model(context)[1].digest:
        changed.append("model")
    if changed:
        raise JobError(
            f"{', '.join(changed)}: changed since ds={context.ds} was published, so the rows that stay would not fit. "
            f"Between a run and its retry only these may change: {', '.join(MAY_CHANGE)}, precision, shapes, and what "
            f"decides no byte. For the whole night {again}"
        )
    return manifest


def base_version(context: Context, retry_of: str) -> Manifest:
    """The published version that a retry was made for. Raises StorageError when another was published since."""
    manifest = committed(context)
    if manifest is None or manifest.fingerprint != retry_of:
        raise StorageError(
            f"ds={context.ds} was published anew since this retry of run {retry_of} was begun; nothing was changed. "
            "Run retry-rejects again"
        )
    return manifest


def origin(plan: RunPlan, snapshot: Snapshot) -> dict[str, Any]:
    """What a later retry of a published run compares itself with."""
    return {
        "snapshot": snapshot.digest,
        "job": plan.job.output_fields(),
        "model": plan.model.digest,
        "row_offsets": [list(offsets) for offsets in plan.row_offsets],
    }


def rejected_rows(context: Context, retry_of: str, snapshot: Snapshot, split: int) -> dict[tuple[int, int], str]:
    """The published rejects of a split: (piece, row in piece) -> reason."""
    base = base_version(context, retry_of)
    table = _published(context, base, snapshot, split, "rejects", rejects_table_schema())
    places = _places(base.origin["row_offsets"][split], snapshot, split, table)
    return dict(zip(places, table["reason"].to_pylist(), strict=True))


def merged(context: Context, plan: RunPlan, snapshot: Snapshot, split: int, predictions: pa.Table) -> pa.Table:
    """A split's published predictions and the new ones, in input order.

    Raises JobError when the published columns are others than the job's.
    """
    assert plan.retry_of is not None
    base = base_version(context, plan.retry_of)
    kept = _published(context, base, snapshot, split, "predictions", predictions.schema)
    both = pa.concat_tables([kept, predictions])
    places = list(_places(plan.row_offsets[split], snapshot, split, both))
    return both.take(pa.array(sorted(range(len(places)), key=places.__getitem__), pa.int64())).combine_chunks()


def _places(offsets: Sequence[int], snapshot: Snapshot, split: int, table: pa.Table) -> Iterator[tuple[int, int]]:
    """(piece, row in piece) of each row of a split, which sorts like the input."""
    pieces = {snapshot.objects[piece.object].uri: number for number, piece in enumerate(snapshot.splits[split].pieces)}
    for uri, row in zip(table["source_uri"].to_pylist(), table["source_row"].to_pylist(), strict=True):
        yield pieces[uri], row - offsets[pieces[uri]]


def _published(
    context: Context, base: Manifest, snapshot: Snapshot, split: int, table: str, schema: pa.Schema
) -> pa.Table:
    """Rows of one split in a published table; other row groups are left out by their statistics."""
    wanted = _within(base.origin["row_offsets"], snapshot, split)
    found = [schema.empty_table()]
    for uri in table_format(context).files(context, base, table):
        try:
            info = context.objects.head(uri)
        except FileNotFoundError:
            raise StorageError(f"{uri} is gone: another run is publishing ds={context.ds}; run again") from None
        read = pq.read_table(context.objects.open(info), filters=wanted)
        own = [name for name in read.column_names if name != "ds"]  # which Iceberg has in the file, too
        if own != schema.names:
            raise JobError(
                f"ds={context.ds} was published with other columns; run: lengthwise run JOB --ds {context.ds}"
            )
        found.append(read.select(own).cast(schema))
    return pa.concat_tables(found)


def _within(row_offsets: Sequence[Sequence[int]], snapshot: Snapshot, split: int) -> Any:
    """An expression for the rows of a split: whole objects, and parts of the ones that are cut."""
    later = {
        piece.object: offset
        for number in range(len(snapshot.splits) - 1, split, -1)
        for piece, offset in zip(snapshot.splits[number].pieces, row_offsets[number], strict=True)
    }
    uri, row = pc.field("source_uri"), pc.field("source_row")
    whole, wanted = [], pc.scalar(False)
    for piece, offset in zip(snapshot.splits[split].pieces, row_offsets[split], strict=True):
        name = snapshot.objects[piece.object].uri
        if offset == 0 and piece.object not in later:
            whole.append(name)
        else:
            stop = later.get(piece.object)
            rows = row >= offset if stop is None else (row >= offset) & (row < stop)
            wanted = wanted | ((uri == name) & rows)
    return wanted | uri.isin(pa.array(whole, pa.string()))
