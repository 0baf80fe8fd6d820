"""What tokenising one split gathers, in columns as it goes: a row costs its tokens and some ten bytes, no objects."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.batch_api.duplicates import encode_ids, id_record
from pipeline.columns import kept_schema, reject_schema
from pipeline.job import Job
from pipeline.rejects import Accepted, Reject, reject
from pipeline.tokenized import ROW, SplitCounts, encode_split, flat_tokens, stored_dtype
from pipeline.tokenizer import TokenizedText

_BATCH_RECORDS = 1_024


class SplitBuilder:
    """Takes a split's rows in input order, in batches; `encoded` then gives its stored form."""

    def __init__(self, job: Job, vocab_size: int) -> None:
        self._max_length = job.max_length
        self._named = job.input.is_batch_api
        self._vocab_size = vocab_size
        self._tokens: list[NDArray[Any]] = []
        self._lengths: list[NDArray[np.int64]] = []
        self._records: list[NDArray[np.void]] = []
        self._kept = _Table(kept_schema(job))
        self._rejects = _Table(reject_schema())
        self._reasons: Counter[str] = Counter()
        self._accepted = 0
        self.piece_rows: list[int] = []
        self._ids = bytearray()
        self._job_samples = job.samples
        self._samples = 0

    def reject(self, piece: int, row: int, fault: Reject) -> None:
        self._reasons[fault.reason] += 1
        self._name(fault.row_id, piece, row, accepted=False)
        self._rejects.add((piece, row, fault.stage, fault.reason, fault.message, fault.payload, fault.row_id))

    def _name(self, row_id: str | None, piece: int, row: int, *, accepted: bool) -> None:
        if self._named and row_id is not None:
            self._ids += id_record(row_id, piece, row, accepted)

    def encoded_ids(self) -> bytes | None:
        """What repeated ids of the night are found by; None where ids may repeat."""
        return encode_ids(bytes(self._ids)) if self._named else None

    def add(self, rows: Sequence[tuple[int, int, Accepted]], texts: Sequence[TokenizedText | Reject]) -> None:
        """Rows as (piece, row in piece, row) with their tokens, or why they have none.

        Raises JobError for tokens that the model lacks.
        """
        kept: list[TokenizedText] = []
        for (piece, row, accepted), text in zip(rows, texts, strict=True):
            checked = text if isinstance(text, Reject) else _checked(accepted, text, self._max_length)
            if isinstance(checked, Reject):
                self.reject(piece, row, dataclasses.replace(checked, row_id=accepted.row_id))
            else:
                kept.append(checked)
                self._samples += accepted.samples or self._job_samples
                self._name(accepted.row_id, piece, row, accepted=True)
                self._kept.add((piece, row, accepted.row_id, accepted.label, accepted.request, *accepted.kept))
        records = np.empty(len(kept), ROW)
        records["position"] = np.arange(self._accepted, self._accepted + len(kept))
        records["truncated"] = [text.truncated_tokens for text in kept]
        records["segment_b"] = [text.segment_b for text in kept]
        self._records.append(records)
        self._lengths.append(np.array([len(text.token_ids) for text in kept], np.int64))
        self._tokens.append(flat_tokens([text.token_ids for text in kept], self._vocab_size))
        self._accepted += len(kept)

    def encoded(self, split: int) -> tuple[SplitCounts, bytes, bytes, pa.Table, pa.Table]:
        """The counts, tokens.bin, rows.bin, and the tables of kept columns and of rejects."""
        records = np.concatenate([np.empty(0, ROW), *self._records])
        lengths = np.concatenate([np.empty(0, np.int64), *self._lengths])
        flat = np.concatenate([np.empty(0, stored_dtype(self._vocab_size)), *self._tokens])
        self._tokens.clear()
        tokens, rows = encode_split(flat, lengths, records)
        occurring, counts = np.unique(lengths, return_counts=True)
        summary = SplitCounts(
            split=split,
            lengths=tuple(occurring.tolist()),
            counts=tuple(counts.tolist()),
            token_dtype=stored_dtype(self._vocab_size),
            rows=self._accepted + self._reasons.total(),
            rejects=self._reasons.total(),
            reasons=dict(self._reasons),
            truncated_rows=int((records["truncated"] > 0).sum()),
            truncated_tokens=int(records["truncated"].sum()),
            piece_rows=tuple(self.piece_rows),
            samples=self._samples,
        )
        return summary, tokens, rows, self._kept.table(), self._rejects.table()


class _Table:
    """Rows that become Arrow columns as soon as there are enough of them."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._waiting: list[tuple[Any, ...]] = []

    def add(self, record: tuple[Any, ...]) -> None:
        self._waiting.append(record)
        if len(self._waiting) == _BATCH_RECORDS:
            self._flush()

    def _flush(self) -> None:
        columns = zip(*self._waiting, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self._schema, strict=True)]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._waiting.clear()

    def table(self) -> pa.Table:
        if self._waiting:
            self._flush()
        return pa.Table.from_batches(self._batches, self._schema).combine_chunks()


def _checked(accepted: Accepted, text: TokenizedText, max_length: int) -> TokenizedText | Reject:
    """The row's tokens, or why they cannot be predicted."""
    length = len(text.token_ids)
    if length > max_length:
        message = f"{length} tokens, max_length is {max_length}; truncation: head, tail or head_tail cuts such rows"
        return reject("tokenize", "too_long", message, accepted.text)
    if length == 0:
        return reject("tokenize", "no_tokens", "the tokenizer returned nothing for this text", accepted.text)
    return text
