"""Step 2, tokenize: read one split, reject what cannot be predicted, store the rest as sorted token ids."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from compile.model import ModelInfo
from pipeline.columns import kept_schema, reject_schema
from pipeline.context import Context
from pipeline.digests import code_version, digest
from pipeline.layout import token_object
from pipeline.parquet_files import parquet_bytes
from pipeline.rejects import Accepted, Reject, check_row, reject
from pipeline.snapshot import Snapshot
from pipeline.sources import source_rows
from pipeline.splits import Split
from pipeline.tokenized import ROW, SplitCounts, encode_split, load_counts
from pipeline.tokenizer import TokenizedText, Tokenizer

_BATCH_ROWS = 1_024
_BATCH_CHARS = 1 << 19
"""The tokenizer's own records take a hundred bytes and more per token until a batch is done."""


def tokens_key(context: Context, snapshot: Snapshot, model: ModelInfo) -> str:
    """Names the tokenised splits: the same input, rules and tokenizer give the same bytes, which later runs reuse."""
    job = context.job
    return digest(
        {
            "snapshot": snapshot.digest,
            "input": job.input.model_dump(mode="json", exclude={"when_missing", "uri"}),
            "max_length": job.max_length,
            "truncation": job.truncation,
            "model": model.digest,
            "code": code_version(),
        }
    )


@dataclass(slots=True)
class _SplitRows:
    """What one split gathers, in input order; bounded by the split."""

    tokens: list[NDArray[np.uint32]] = field(default_factory=list)
    records: list[tuple[int, int, int]] = field(default_factory=list)
    kept: list[tuple[Any, ...]] = field(default_factory=list)
    rejects: list[tuple[Any, ...]] = field(default_factory=list)
    piece_rows: list[int] = field(default_factory=list)


def tokenize_split(
    context: Context, snapshot: Snapshot, split: Split, tokens_uri: str, tokenizer: Tokenizer, vocab_size: int
) -> SplitCounts:
    """Tokenise one split, or return the counts of an earlier run. Raises JobError, StorageError."""
    try:
        return load_counts(context.objects, tokens_uri, split.index)
    except FileNotFoundError:
        pass
    gathered = _SplitRows()
    for batch in _batches(_checked_rows(context, snapshot, split, gathered)):
        texts = tokenizer.encode([(accepted.text, accepted.pair) for _, _, accepted in batch])
        for (piece, row, accepted), text in zip(batch, texts, strict=True):
            _add(gathered, piece, row, accepted, text, context.job.max_length)
    counts = _store(context, split, tokens_uri, gathered, vocab_size)
    context.say(f"tokenize: split {split.index}: {counts.rows:,} rows, {counts.rejects} rejected")
    return counts


def _checked_rows(
    context: Context, snapshot: Snapshot, split: Split, gathered: _SplitRows
) -> Iterator[tuple[int, int, Accepted]]:
    """Accepted rows as (piece, row in piece, row); rejects and row counts go to `gathered`."""
    spec = context.job.input
    for number, piece in enumerate(split.pieces):
        info, name = snapshot.objects[piece.object], snapshot.formats[piece.object]
        rows = 0
        for source_row in source_rows(context.objects, info, name, piece, spec):
            rows = source_row.row + 1
            checked = source_row.fault or check_row(source_row.values or {}, spec)
            if isinstance(checked, Reject):
                gathered.rejects.append(_reject_record(number, source_row.row, checked))
            else:
                yield number, source_row.row, checked
        gathered.piece_rows.append(rows)


def _batches(rows: Iterator[tuple[int, int, Accepted]]) -> Iterator[list[tuple[int, int, Accepted]]]:
    batch = []
    chars = 0
    for row in rows:
        batch.append(row)
        chars += len(row[2].text) + len(row[2].pair or "")
        if len(batch) == _BATCH_ROWS or chars >= _BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def _add(gathered: _SplitRows, piece: int, row: int, accepted: Accepted, text: TokenizedText, max_length: int) -> None:
    length = len(text.token_ids)
    fault = None
    if length > max_length:
        message = f"{length} tokens, max_length is {max_length}; set truncation to head or tail to cut such rows"
        fault = reject("tokenize", "too_long", message, accepted.text)
    elif length == 0:
        fault = reject("tokenize", "no_tokens", "the tokenizer returned nothing for this text", accepted.text)
    if fault is not None:
        gathered.rejects.append(_reject_record(piece, row, fault))
        return
    gathered.records.append((len(gathered.tokens), text.truncated_tokens, text.segment_b))
    gathered.tokens.append(text.token_ids)
    gathered.kept.append((piece, row, accepted.row_id, accepted.label, *accepted.kept))


def _reject_record(piece: int, row: int, fault: Reject) -> tuple[Any, ...]:
    return (piece, row, fault.stage, fault.reason, fault.message, fault.payload)


def _store(context: Context, split: Split, tokens_uri: str, gathered: _SplitRows, vocab_size: int) -> SplitCounts:
    records = np.array(gathered.records, ROW)
    tokens, rows, dtype = encode_split(gathered.tokens, records, vocab_size)
    lengths, counts = np.unique([len(item) for item in gathered.tokens], return_counts=True)
    summary = SplitCounts(
        split=split.index,
        lengths=tuple(int(length) for length in lengths),
        counts=tuple(int(count) for count in counts),
        token_dtype=dtype,
        rows=len(gathered.tokens) + len(gathered.rejects),
        rejects=len(gathered.rejects),
        reasons=dict(Counter(record[3] for record in gathered.rejects)),
        truncated_rows=int((records["truncated"] > 0).sum()),
        truncated_tokens=int(records["truncated"].sum()),
        piece_rows=tuple(gathered.piece_rows),
    )
    objects = {
        "tokens.bin": tokens,
        "rows.bin": rows,
        "kept.parquet": _parquet(gathered.kept, kept_schema(context.job)),
        "rejects.parquet": _parquet(gathered.rejects, reject_schema()),
        "meta.json": json.dumps(summary.to_json()).encode(),  # last: it marks the split as done
    }
    for name, data in objects.items():
        context.objects.put_new(token_object(tokens_uri, split.index, name), data)
    return summary


def _parquet(records: list[tuple[Any, ...]], schema: pa.Schema) -> bytes:
    columns = list(zip(*records, strict=True)) if records else [()] * len(schema)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return parquet_bytes(pa.Table.from_arrays(arrays, schema=schema))
