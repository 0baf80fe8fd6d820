"""generate: texts with why they ended and how many tokens they took, one output row per sample."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.job import Job

TEXT = pa.struct(
    [
        pa.field("text", pa.string()),
        pa.field("finish_reason", pa.string()),
        pa.field("prompt_tokens", pa.int32()),
        pa.field("output_tokens", pa.int32()),
        pa.field("log_probability", pa.float64()),
        pa.field("token_ids", pa.list_(pa.int32())),
    ]
)
"""One sample; `token_ids` are null where the job does not ask for them."""
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

    def faults(self, output: pa.Array) -> dict[int, str]:
        found: dict[int, str] = {}
        # A column of a few bytes a row: texts are not looked at.
        reasons, rows = output.flatten().field("finish_reason"), pc.list_parent_indices(output)
        failed = pc.is_in(reasons, pa.array(FAILED))
        for row, reason in zip(rows.filter(failed).to_pylist(), reasons.filter(failed).to_pylist(), strict=True):
            found.setdefault(row, reason)
        return found

    def columns(self, output: pa.Array, job: Job, labels: tuple[str, ...], problem_type: str) -> list[pa.Array]:
        del labels, problem_type
        texts = output.flatten()
        samples = pa.array(list(range(job.samples)) * len(output), pa.int32())
        return [samples if name == "sample" else texts.field(name) for name in _columns(job)]


def _columns(job: Job) -> dict[str, pa.DataType]:
    assert job.generate is not None
    wanted = {
        "text": True,
        "finish_reason": True,
        "prompt_tokens": True,
        "output_tokens": True,
        "sample": job.samples > 1,
        "log_probability": job.generate.log_probability,
        "token_ids": job.generate.token_ids,
    }
    kinds = {field.name: field.type for field in TEXT} | {"sample": pa.int32()}
    return {name: kinds[name] for name, asked in wanted.items() if asked}


task = Generate()
