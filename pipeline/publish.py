"""Step 6, publish: one split's rows gathered from the shard results, in input order, joined with what the job keeps."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.columns import OWN_COLUMNS, kept_schema, prediction_schema, reject_schema, rejects_table_schema
from pipeline.context import Context
from pipeline.layout import part_object, part_summary, shard_object, token_object
from pipeline.parquet_files import parquet_bytes, read_table
from pipeline.rejects import REASONS, reject
from pipeline.retry import merged
from pipeline.run_plan import RunPlan
from pipeline.shard_result import ShardResult
from pipeline.shards import Place, Range
from pipeline.snapshot import Snapshot
from pipeline.tasks import load_task
from pipeline.tokenized import SplitCounts, load_counts, read_block


@dataclass(frozen=True, slots=True)
class PartSummary:
    """What a published split holds; the commit adds these up."""

    split: int
    rows: int
    predicted: int
    rejected: int
    reasons: dict[str, int]
    """Rejects per reason code, of all stages."""
    real_tokens: int
    truncated_rows: int
    truncated_tokens: int
    files: dict[str, dict[str, Any]]
    """Table -> rows, size_bytes and sha256 of the staged part."""

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
    rejects = _rejects(plan, snapshot, rows)
    files = {}
    for table, content in {"predictions": predictions, "rejects": rejects}.items():
        data = parquet_bytes(content)
        context.objects.put_new(part_object(plan.uri, table, split), data)
        digest = hashlib.sha256(data).hexdigest()
        files[table] = {"rows": content.num_rows, "size_bytes": len(data), "sha256": digest}
    summary = PartSummary(
        split=split,
        rows=rows.counts.rows + predictions.num_rows - new.num_rows if rows else 0,
        predicted=predictions.num_rows,
        rejected=rejects.num_rows,
        reasons=dict(Counter(rejects["reason"].to_pylist())),
        **_tokens(plan, rows, predictions),
        files=files,
    )
    context.objects.put_new(part_summary(plan.uri, split), json.dumps(summary.to_json()).encode())
    context.say(f"publish: split {split}: {summary.predicted:,} predicted, {summary.rejected:,} rejected")
    return summary


def _tokens(plan: RunPlan, rows: _SplitResult | None, predictions: pa.Table) -> dict[str, int]:
    """Tokens of the accepted rows; of a retry, those of the predictions, for it knows no others."""
    if rows is not None and plan.retry_of is None:
        real, cut_rows, cut = int(rows.lengths.sum()), rows.counts.truncated_rows, rows.counts.truncated_tokens
    else:
        truncated = predictions["truncated_tokens"].to_numpy()
        real = int(predictions["token_count"].to_numpy().sum())
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
    logits: NDArray[np.float32]
    lengths: NDArray[np.int64]
    truncated: NDArray[np.int64]
    shapes: NDArray[np.int64]
    """Index into the plan's shapes, per row."""
    faults: dict[int, str]
    """Position of a row that could not be executed -> reason code."""

    @classmethod
    def gather(cls, context: Context, plan: RunPlan, split: int, places: Sequence[Place]) -> _SplitResult:
        counts = load_counts(context.objects, plan.tokens_uri, split)
        kept, rejects = (
            read_table(context.objects.get(token_object(plan.tokens_uri, split, f"{name}.parquet")))
            for name in ("kept", "rejects")
        )
        rows = counts.accepted
        columns = max(1, len(plan.model.labels))
        result = cls(
            split=split,
            counts=counts,
            kept=kept.cast(kept_schema(plan.job)),
            rejects=rejects.cast(reject_schema()),
            logits=np.full((rows, columns), np.nan, np.float32),
            lengths=np.zeros(rows, np.int64),
            truncated=np.zeros(rows, np.int64),
            shapes=np.zeros(rows, np.int64),
            faults={},
        )
        for place in places:
            found = ShardResult.decode(context.objects.get(shard_object(plan.uri, place.shard.index)))
            result._place(context, plan, place.part, found.part(place.start, place.stop), place.shard.shape)
        return result

    def _place(self, context: Context, plan: RunPlan, part: Range, found: ShardResult, shape: int) -> None:
        block = read_block(context.objects, plan.tokens_uri, self.counts, part.start, part.stop)
        positions = block.rows["position"]
        self.logits[positions] = found.logits
        self.lengths[positions] = block.lengths
        self.truncated[positions] = block.rows["truncated"]
        self.shapes[positions] = shape
        self.faults.update({int(at): fault for at, fault in zip(positions, found.faults, strict=True) if fault})

    @property
    def good(self) -> NDArray[np.bool_]:
        """Rows with finite logits; the others are rejects. A row with a fault has none."""
        return np.asarray(np.isfinite(self.logits).all(axis=1))


def _predictions(plan: RunPlan, snapshot: Snapshot, result: _SplitResult | None) -> pa.Table:
    job, model = plan.job, plan.model
    schema = prediction_schema(job, model.labels, model.problem_type)
    if result is None:
        return schema.empty_table()
    good = np.flatnonzero(result.good)
    kept = result.kept.take(pa.array(good))
    task = load_task(job.task)
    uris, source_rows = _origin(plan, snapshot, result.split, kept.column(0).to_pylist(), kept.column(1).to_pylist())
    given_ids = kept.column(2).to_pylist()
    row_ids = [
        f"{uri}#{row}" if given is None else given for given, uri, row in zip(given_ids, uris, source_rows, strict=True)
    ]
    shapes = [str(shape) for shape in plan.shape_plan.shapes]
    columns = [
        *(kept.column(index) for index in range(OWN_COLUMNS, kept.num_columns)),
        *task.columns(result.logits[good], model.labels, model.problem_type, job.output.all_scores),
        row_ids,
        uris,
        source_rows,
        result.lengths[good],
        result.truncated[good],
        [shapes[index] for index in result.shapes[good]],
        [plan.artifacts[index] for index in result.shapes[good]],
        [plan.fingerprint] * len(good),
    ]
    return _table(columns, schema)


def _rejects(plan: RunPlan, snapshot: Snapshot, result: _SplitResult | None) -> pa.Table:
    """Rejects of reading, tokenising and inference, in input order."""
    if result is None:
        return rejects_table_schema().empty_table()
    records = [tuple(record.values()) for record in result.rejects.to_pylist()]
    for position in np.flatnonzero(~result.good):
        piece, row, row_id = (result.kept.column(index)[int(position)].as_py() for index in range(3))
        reason = result.faults.get(int(position), "nan_logits")
        fault = reject("infer", reason, f"row id {row_id}: {REASONS[reason]}", "")
        records.append((piece, row, fault.stage, fault.reason, fault.message, fault.payload))
    records.sort(key=lambda record: (record[0], record[1]))
    pieces = [record[0] for record in records]
    uris, source_rows = _origin(plan, snapshot, result.split, pieces, [record[1] for record in records])
    faults = [[record[index] for record in records] for index in range(2, 6)]
    return _table([uris, source_rows, *faults, [plan.fingerprint] * len(records)], rejects_table_schema())


def _origin(
    plan: RunPlan, snapshot: Snapshot, split: int, pieces: list[int], rows: list[int]
) -> tuple[list[str], list[int]]:
    """Source URI and row number within the object, from the piece and the row within it."""
    offsets = plan.row_offsets[split]
    uris = [snapshot.objects[piece.object].uri for piece in snapshot.splits[split].pieces]
    return [uris[piece] for piece in pieces], [offsets[piece] + row for piece, row in zip(pieces, rows, strict=True)]


def _table(columns: list[Any], schema: pa.Schema) -> pa.Table:
    arrays = [
        column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column, kind.type)
        for column, kind in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
