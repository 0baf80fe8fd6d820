"""Step 2, tokenize: read one split, reject what cannot be predicted, store the rest as sorted token ids."""

from __future__ import annotations

import json
from collections.abc import Iterator

from compile.model import ModelInfo
from pipeline.context import Context
from pipeline.digests import code_version, digest
from pipeline.layout import token_object
from pipeline.parquet_files import parquet_bytes
from pipeline.rejects import Accepted, Reject, check_row
from pipeline.snapshot import Snapshot
from pipeline.sources import source_rows
from pipeline.split_builder import SplitBuilder
from pipeline.splits import Split
from pipeline.tokenized import SplitCounts, load_counts
from pipeline.tokenizer import Tokenizer

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


def tokenize_split(
    context: Context, snapshot: Snapshot, split: Split, tokens_uri: str, tokenizer: Tokenizer, vocab_size: int
) -> SplitCounts:
    """Tokenise one split, or return the counts of an earlier run. Raises JobError, StorageError."""
    try:
        return load_counts(context.objects, tokens_uri, split.index)
    except FileNotFoundError:
        pass
    builder = SplitBuilder(context.job, vocab_size)
    for batch in _batches(_checked_rows(context, snapshot, split, builder)):
        builder.add(batch, tokenizer.encode([(accepted.text, accepted.pair) for _, _, accepted in batch]))
    counts = _store(context, tokens_uri, split.index, builder)
    context.say(f"tokenize: split {split.index}: {counts.rows:,} rows, {counts.rejects} rejected")
    return counts


def _checked_rows(
    context: Context, snapshot: Snapshot, split: Split, builder: SplitBuilder
) -> Iterator[tuple[int, int, Accepted]]:
    """Accepted rows as (piece, row in piece, row); rejects and row counts go to `builder`."""
    spec = context.job.input
    for number, piece in enumerate(split.pieces):
        info, name = snapshot.objects[piece.object], snapshot.formats[piece.object]
        rows = 0
        for source_row in source_rows(context.objects, info, name, piece, spec):
            rows = source_row.row + 1
            checked = source_row.fault or check_row(source_row.values or {}, spec)
            if isinstance(checked, Reject):
                builder.reject(number, source_row.row, checked)
            else:
                yield number, source_row.row, checked
        builder.piece_rows.append(rows)


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


def _store(context: Context, tokens_uri: str, split: int, builder: SplitBuilder) -> SplitCounts:
    summary, tokens, rows, kept, rejects = builder.encoded(split)
    objects = {
        "tokens.bin": tokens,
        "rows.bin": rows,
        "kept.parquet": parquet_bytes(kept),
        "rejects.parquet": parquet_bytes(rejects),
        "meta.json": json.dumps(summary.to_json()).encode(),  # last: it marks the split as done
    }
    for name, data in objects.items():
        context.objects.put_new(token_object(tokens_uri, split, name), data)
    return summary
