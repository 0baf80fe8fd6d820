"""Step 6, publish: one split's rows gathered from the shard results, in input order, joined with what the job keeps."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.batch_api.answers import error_lines, output_lines
from pipeline.batch_api.duplicates import load_duplicates
from pipeline.columns import OWN_COLUMNS, kept_schema, prediction_schema, reject_schema, rejects_table_schema
from pipeline.context import Context
from pipeline.errors import ConservationError
from pipeline.layout import BATCH_FILES, part_object, part_summary, shard_object, token_object
from pipeline.parquet_files import parquet_bytes, read_table
from pipeline.rejects import REASONS, Reject, duplicate, reject
from pipeline.retry import merged
from pipeline.row_ids import origins, row_ids
from pipeline.run_plan import RunPlan
from pipeline.shard_result import ShardResult
from pipeline.shards import Place
from pipeline.snapshot import Snapshot
from pipeline.tasks import load_task
from pipeline.tokenized import SplitCounts, load_counts, read_block


@dataclass(frozen=True, slots=True)
class PartSummary:
    """What a published split holds; the commit adds these up."""

    split: int
    rows: int
    predicted: int
    """Input rows, whatever number of samples each has."""
    rejected: int
    reasons: dict[str, int]
    """Rejects per reason code, of all stages."""
    real_tokens: int
    truncated_rows: int
    truncated_tokens: int
    duplicates: int
    """Rows that were executed and rejected for their id."""
    files: dict[str, dict[str, Any]]
    """Table, or file of the Batch API, -> rows, size_bytes and sha256 of the staged part."""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def publish_split(
    context: Context, plan: RunPlan, snapshot: Snapshot, split: int, places: Sequence[Place]
) -> PartSummary:
    """Stage one split's parts, or return the summary of an earlier attempt; `places` are where its results lie."""
    try:
        return load_summary(context, plan, split)
    except FileNotFoundError:
        pass
    rows = _SplitResult.gather(context, plan, split, places) if split < len(plan.row_offsets) else None
    new = _predictions(plan, snapshot, rows)
    predictions = merged(context, plan, snapshot, split, new) if plan.retry_of and rows else new
    rejects, names = _rejects(plan, snapshot, rows)
    firsts = _first_lines(predictions)
    files = {}
    for table, (data, count) in _contents(plan, predictions, rejects, names).items():
        context.objects.put_new(part_object(plan.uri, table, split), data)
        digest = hashlib.sha256(data).hexdigest()
        files[table] = {"rows": count, "size_bytes": len(data), "sha256": digest}
    summary = PartSummary(
        split=split,
        rows=rows.counts.rows + len(firsts) - len(_first_lines(new)) if rows else 0,
        predicted=len(firsts),
        rejected=rejects.num_rows,
        reasons=dict(Counter(rejects["reason"].to_pylist())),
        duplicates=list(rows.faults.values()).count("duplicate_id") if rows else 0,
        **_tokens(plan, rows, predictions, firsts),
        files=files,
    )
    context.objects.put_new(part_summary(plan.uri, split), json.dumps(summary.to_json()).encode())
    context.say(f"publish: split {split}: {summary.predicted:,} predicted, {summary.rejected:,} rejected")
    return summary


def _contents(
    plan: RunPlan, predictions: pa.Table, rejects: pa.Table, names: Sequence[str | None]
) -> dict[str, tuple[bytes, int]]:
    """What is staged: table, or file of the Batch API -> its bytes, and how many rows or lines it has."""
    found = {"predictions": predictions, "rejects": rejects}
    staged = {name: (parquet_bytes(table), table.num_rows) for name, table in found.items()}
    if plan.job.input.is_batch_api:
        lines = output_lines(predictions, plan.ds), error_lines(rejects, names)
        staged |= {name: (data, data.count(b"\n")) for name, data in zip(BATCH_FILES, lines, strict=True)}
    return staged


def _first_lines(predictions: pa.Table) -> NDArray[np.int64]:
    """Of the samples of each input row, which lie together, the place of the first; ascending."""
    uris, rows = predictions["source_uri"].combine_chunks(), predictions["source_row"].combine_chunks()
    if not len(rows):
        return np.empty(0, np.int64)
    new = pc.or_(pc.not_equal(uris[1:], uris[:-1]), pc.not_equal(rows[1:], rows[:-1]))
    return np.concatenate([[0], 1 + np.flatnonzero(new.to_numpy(zero_copy_only=False))])


def _tokens(
    plan: RunPlan, rows: _SplitResult | None, predictions: pa.Table, firsts: NDArray[np.int64]
) -> dict[str, int]:
    """Tokens of the accepted rows; of a retry, those of the predictions, for it knows no others."""
    if rows is not None and plan.retry_of is None:
        real, cut_rows, cut = int(rows.lengths.sum()), rows.counts.truncated_rows, rows.counts.truncated_tokens
    else:
        truncated = predictions["truncated_tokens"].to_numpy()[firsts]
        real = int(predictions["token_count"].to_numpy()[firsts].sum())
        cut_rows, cut = int((truncated > 0).sum()), int(truncated.sum())
    return {"real_tokens": real, "truncated_rows": cut_rows, "truncated_tokens": cut}


def load_summary(context: Context, plan: RunPlan, split: int) -> PartSummary:
    """Raises FileNotFoundError while the split is not published."""
    return PartSummary(**json.loads(context.objects.get(part_summary(plan.uri, split))))


@dataclass(frozen=True, slots=True)
class _SplitResult:
    """A split's accepted rows in input order."""

    split: int
    counts: SplitCounts
    kept: pa.Table
    rejects: pa.Table
    """Rejects of reading and tokenising."""
    output: pa.Array
    """Of the task's output type; null where a row could not be executed."""
    lengths: NDArray[np.int64]
    truncated: NDArray[np.int64]
    shapes: NDArray[np.int64]
    """Index into the plan's shapes, per row."""
    duplicates: frozenset[tuple[int, int]]
    """(piece, row in piece) of rows that repeat an id."""
    faults: dict[int, str]
    """Position of a row that could not be executed, or whose output is no prediction -> reason code."""

    @classmethod
    def gather(cls, context: Context, plan: RunPlan, split: int, places: Sequence[Place]) -> _SplitResult:
        counts = load_counts(context.objects, plan.tokens_uri, split)
        kept, rejects = (
            read_table(context.objects.get(token_object(plan.tokens_uri, split, f"{name}.parquet")))
            for name in ("kept", "rejects")
        )
        rows, task = counts.accepted, load_task(plan.job.task)
        lengths, truncated, shapes = np.zeros((3, rows), np.int64)
        places_of: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
        outputs = [pa.nulls(0, task.output_type(plan.model.labels))]
        faults: dict[int, str] = {}
        for place in places:
            found = ShardResult.decode(context.objects.get(shard_object(plan.uri, place.shard.index)))
            found = found.part(place.start, place.stop)
            block = read_block(context.objects, plan.tokens_uri, counts, place.part.start, place.part.stop)
            positions = block.rows["position"].astype(np.int64)
            lengths[positions], truncated[positions] = block.lengths, block.rows["truncated"]
            shapes[positions] = place.shard.shape
            faults.update({int(at): fault for at, fault in zip(positions, found.faults, strict=True) if fault})
            places_of.append(positions)
            outputs.append(found.output)
        where = np.concatenate(places_of)
        if not np.array_equal(np.sort(where), np.arange(rows)):  # else results would move to other rows
            raise ConservationError(
                f"split {split}: {len(np.unique(where))} of {rows} rows have a result, of {len(where)} results; "
                f"nothing was published. Please report this with {plan.uri}"
            )
        output = pa.concat_arrays(outputs).take(pa.array(np.argsort(where)))
        duplicates = load_duplicates(context.objects, plan.uri, split) if plan.job.input.is_batch_api else frozenset()
        return cls(
            split=split,
            counts=counts,
            kept=kept.cast(kept_schema(plan.job)),
            rejects=rejects.cast(reject_schema()),
            output=output,
            lengths=lengths,
            truncated=truncated,
            shapes=shapes,
            duplicates=duplicates,
            faults=task.faults(output, plan.job) | faults | _repeated(kept, duplicates),
        )

    @property
    def good(self) -> NDArray[np.int64]:
        """Positions of the rows that are predicted, ascending."""
        return np.setdiff1d(np.arange(self.counts.accepted), np.array(list(self.faults), np.int64))


def _repeated(kept: pa.Table, duplicates: frozenset[tuple[int, int]]) -> dict[int, str]:
    """Faults of the accepted rows that repeat an id."""
    places = zip(kept.column(0).to_pylist(), kept.column(1).to_pylist(), strict=True) if duplicates else ()
    return {position: "duplicate_id" for position, place in enumerate(places) if place in duplicates}


def _predictions(plan: RunPlan, snapshot: Snapshot, result: _SplitResult | None) -> pa.Table:
    job, model = plan.job, plan.model
    schema = prediction_schema(job, model.labels, model.problem_type)
    if result is None:
        return schema.empty_table()
    good, task = result.good, load_task(job.task)
    output = result.output.take(pa.array(good))
    lines = np.repeat(good, task.lines(output))  # of generate: a row has one per sample
    kept = result.kept.take(pa.array(lines))
    uris, source_rows = origins(plan, snapshot, result.split, kept.column(0).to_pylist(), kept.column(1).to_pylist())
    shapes = [str(shape) for shape in plan.shape_plan.shapes]
    columns = [
        *(kept.column(index) for index in range(OWN_COLUMNS, kept.num_columns)),
        *_request_columns(plan, kept),
        *task.columns(output, job, model.labels, model.problem_type),
        row_ids(kept.column(2).to_pylist(), uris, source_rows),
        uris,
        source_rows,
        result.lengths[lines],
        result.truncated[lines],
        [shapes[index] for index in result.shapes[lines]],
        [plan.artifacts[index] for index in result.shapes[lines]],
        [plan.fingerprint] * len(lines),
    ]
    return _table(columns, schema)


def _request_columns(plan: RunPlan, kept: pa.Table) -> list[list[str]]:
    """Those of columns.request_fields. A body without a model was answered by the first of the job's names for it."""
    if not plan.job.input.is_batch_api:
        return []
    assert plan.job.generate is not None
    named = (*plan.job.generate.served_model_names, plan.model.digest)[0]
    requests = [json.loads(request) for request in kept["__request"].to_pylist()]
    return [[request["url"] for request in requests], [request["model"] or named for request in requests]]


def _rejects(plan: RunPlan, snapshot: Snapshot, result: _SplitResult | None) -> tuple[pa.Table, list[str | None]]:
    """Rejects of reading, tokenising and inference, in input order, and what each calls itself."""
    if result is None:
        return rejects_table_schema().empty_table(), []
    records = [_record(tuple(record.values()), result.duplicates) for record in result.rejects.to_pylist()]
    for position, reason in sorted(result.faults.items()):
        piece, row, row_id = (result.kept.column(index)[position].as_py() for index in range(3))
        fault = reject("infer", reason, f"row id {row_id}: {REASONS[reason]}", "")
        fault = duplicate(fault) if reason == "duplicate_id" else fault
        records.append((piece, row, fault.stage, fault.reason, fault.message, fault.payload, row_id))
    records.sort(key=lambda record: (record[0], record[1]))
    pieces = [record[0] for record in records]
    uris, source_rows = origins(plan, snapshot, result.split, pieces, [record[1] for record in records])
    faults = [[record[index] for record in records] for index in range(2, 6)]
    table = _table([uris, source_rows, *faults, [plan.fingerprint] * len(records)], rejects_table_schema())
    return table, [record[6] for record in records]


def _record(record: tuple[Any, ...], duplicates: frozenset[tuple[int, int]]) -> tuple[Any, ...]:
    """A reject of reading or tokenising as (piece, row, *fault); that its id is taken is said before all else."""
    piece, row, *fault = record
    return (piece, row, *dataclasses.astuple(duplicate(Reject(*fault)))) if (piece, row) in duplicates else record


def _table(columns: list[Any], schema: pa.Schema) -> pa.Table:
    arrays = [
        column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column, kind.type)
        for column, kind in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
