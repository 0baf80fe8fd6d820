"""Step 2, tokenize: read one split, reject what cannot be predicted, store the rest as sorted token ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from compile.model import ModelInfo
from pipeline.batch_api.lines import check_line
from pipeline.context import Context
from pipeline.digests import code_version, digest
from pipeline.layout import token_object
from pipeline.parquet_files import parquet_bytes
from pipeline.rejects import Accepted, Reject, check_row, duplicate
from pipeline.retry import rejected_rows
from pipeline.snapshot import Snapshot
from pipeline.sources import source_rows
from pipeline.split_builder import SplitBuilder
from pipeline.splits import Split
from pipeline.tokenized import SplitCounts, load_counts
from pipeline.tokenizer import RowTokenizer
from pipeline.workloads import load_workload

_BATCH_ROWS = 1_024
_BATCH_CHARS = 1 << 19
"""The tokenizer's own records take a hundred bytes and more per token until a batch is done."""


def tokens_key(context: Context, snapshot: Snapshot, model: ModelInfo, retry_of: str | None = None) -> str:
    """Names the tokenised splits: the same input, rules and tokenizer give the same bytes, which later runs reuse."""
    job = context.job
    return digest(
        {
            "snapshot": snapshot.digest,
            "input": job.input.model_dump(mode="json", exclude={"when_missing", "uri"}),
            "max_length": job.max_length,
            "truncation": job.truncation,
            "prompt": load_workload(job.task).prompt_identity(context),
            "model": model.digest,
            "code": code_version(),
            "retry_of": retry_of,
        }
    )


def tokenize_split(
    context: Context,
    snapshot: Snapshot,
    split: Split,
    tokens_uri: str,
    tokenizer: RowTokenizer,
    vocab_size: int,
    retry_of: str | None = None,
) -> SplitCounts:
    """Tokenise one split, or return the counts of an earlier run. Raises JobError, StorageError.

    With `retry_of`, the rejects alone that this published run has in the split.
    """
    try:
        return load_counts(context.objects, tokens_uri, split.index)
    except FileNotFoundError:
        pass
    only = None if retry_of is None else rejected_rows(context, retry_of, snapshot, split.index)
    builder = SplitBuilder(context.job, vocab_size)
    for batch in _batches(_checked_rows(context, snapshot, split, builder, only)):
        builder.add(batch, tokenizer.encode([(accepted.text, accepted.pair) for _, _, accepted in batch]))
    counts = _store(context, tokens_uri, split.index, builder)
    context.say(f"tokenize: split {split.index}: {counts.rows:,} rows, {counts.rejects} rejected")
    return counts


def _checked_rows(
    context: Context,
    snapshot: Snapshot,
    split: Split,
    builder: SplitBuilder,
    only: Mapping[tuple[int, int], str] | None,
) -> Iterator[tuple[int, int, Accepted]]:
    """Accepted rows as (piece, row in piece, row); rejects and row counts go to `builder`.

    `only` are the wanted, with the reason that each was rejected for.
    """
    spec = context.job.input
    check = check_line if spec.is_batch_api else check_row
    wanted = None if only is None else {piece for piece, _ in only}
    for number, piece in enumerate(split.pieces):
        if wanted is not None and number not in wanted:
            continue
        info, name = snapshot.objects[piece.object], snapshot.formats[piece.object]
        rows = 0
        for source_row in source_rows(context.objects, info, name, piece, spec):
            rows = source_row.row + 1
            if only is not None and (number, source_row.row) not in only:
                continue
            checked = source_row.fault or check(source_row.values or {}, spec)
            if only is not None and only[number, source_row.row] == "duplicate_id":
                checked = duplicate(checked)
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
    ids = builder.encoded_ids()
    objects = {
        "tokens.bin": tokens,
        "rows.bin": rows,
        "kept.parquet": parquet_bytes(kept),
        "rejects.parquet": parquet_bytes(rejects),
        **({"ids.bin": ids} if ids is not None else {}),
        "meta.json": json.dumps(summary.to_json()).encode(),  # last: it marks the split as done
    }
    for name, data in objects.items():
        context.objects.put_new(token_object(tokens_uri, split, name), data)
    return summary
