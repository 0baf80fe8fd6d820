"""generate: texts with why they ended and how many tokens they took, one output row per sample."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.job import Job
from pipeline.json_values import parse_value, value_type

TEXT = pa.struct(
    [
        pa.field("text", pa.string()),
        pa.field("finish_reason", pa.string()),
        pa.field("prompt_tokens", pa.int32()),
        pa.field("output_tokens", pa.int32()),
        pa.field("log_probability", pa.float64()),
        pa.field("token_ids", pa.list_(pa.int32())),
        pa.field("logprobs", pa.string()),
    ]
)
"""One sample; `token_ids` are null where the job does not ask for them, `logprobs` (JSON) where the row does not."""
FAILED = ("nan_logits", "dead_end")
"""Finish reasons that make the row a reject."""


class Generate:
    """A row's output is the list of its samples; a row is a reject when one of them failed."""

    def output_type(self, labels: tuple[str, ...]) -> pa.DataType:
        del labels
        return pa.list_(TEXT)

    def fields(self, job: Job, labels: tuple[str, ...], problem_type: str) -> list[pa.Field]:
        del labels, problem_type
        return [pa.field(name, kind) for name, kind in _columns(job).items()]

    def lines(self, output: pa.Array) -> NDArray[np.int64]:
        found: NDArray[np.int64] = pc.list_value_length(output).to_numpy(zero_copy_only=False).astype(np.int64)
        return found

    def faults(self, output: pa.Array, job: Job) -> dict[int, str]:
        found: dict[int, str] = {}
        # A column of a few bytes a row: texts are not looked at.
        reasons, rows = output.flatten().field("finish_reason"), pc.list_parent_indices(output)
        failed = pc.is_in(reasons, pa.array(FAILED))
        for row, reason in zip(rows.filter(failed).to_pylist(), reasons.filter(failed).to_pylist(), strict=True):
            found.setdefault(row, reason)
        kind = _value_type(job)
        if kind is not None:
            texts = output.flatten().field("text")
            for row, text in zip(rows.to_pylist(), texts.to_pylist(), strict=True):
                if row not in found and not _fits(text, kind):
                    found[row] = "bad_json"
        return found

    def columns(self, output: pa.Array, job: Job, labels: tuple[str, ...], problem_type: str) -> list[pa.Array]:
        del labels, problem_type
        texts = output.flatten()
        made: dict[str, pa.Array] = {}
        made["sample"] = pa.array([sample for count in self.lines(output) for sample in range(count)], pa.int32())
        kind = _value_type(job)
        if kind is not None:
            made["value"] = pa.array([parse_value(text, kind) for text in texts.field("text").to_pylist()], kind)
        return [made[name] if name in made else texts.field(name) for name in _columns(job)]


def _columns(job: Job) -> dict[str, pa.DataType]:
    assert job.generate is not None
    wanted = {
        "text": True,
        "value": _value_type(job) is not None,
        "finish_reason": True,
        "prompt_tokens": True,
        "output_tokens": True,
        "sample": job.samples > 1 or job.input.is_batch_api,
        "log_probability": job.generate.log_probability,
        "token_ids": job.generate.token_ids,
        "logprobs": job.input.is_batch_api,
    }
    kinds = {field.name: field.type for field in TEXT} | {"sample": pa.int32(), "value": _value_type(job)}
    return {name: kinds[name] for name, asked in wanted.items() if asked}


def _value_type(job: Job) -> pa.DataType | None:
    """Of the column `value`; None for a job that has none."""
    assert job.generate is not None
    return value_type(job.generate.json_schema) if job.generate.json_schema is not None else None


def _fits(text: str, kind: pa.DataType) -> bool:
    try:
        parse_value(text, kind)
    except ValueError:
        return False
    return True


task = Generate()
