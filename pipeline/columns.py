"""The declared Arrow schemas: of what steps hand on, and of the tables that readers query. Plain types only."""

from __future__ import annotations

import pyarrow as pa

from pipeline.job import Job
from pipeline.tasks import load_task

ARROW_TYPES = {
    "string": pa.string(),
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
}
"""A job's column type -> what is written; all of them read alike in Athena, Spark, Trino, DuckDB and polars."""


def kept_fields(job: Job) -> list[pa.Field]:
    return [pa.field(name, ARROW_TYPES[column.type]) for name, column in job.input.keep.items()]


def request_fields(job: Job) -> list[pa.Field]:
    """Which endpoint and model a line of a batch file asked; of other formats nothing."""
    return [pa.field(name, pa.string()) for name in ("url", "model")] if job.input.is_batch_api else []


OWN_COLUMNS = 5
"""Columns of `kept_schema` before the kept ones."""


def kept_schema(job: Job) -> pa.Schema:
    """Between tokenise and publish: where an accepted row came from, its id, label and request, the kept columns."""
    own = [
        pa.field("__piece", pa.int32()),
        pa.field("__row", pa.int64()),
        pa.field("__row_id", pa.string()),
        pa.field("__label", pa.string()),
        pa.field("__request", pa.string()),
    ]
    assert len(own) == OWN_COLUMNS
    return pa.schema([*own, *kept_fields(job)])


def reject_schema() -> pa.Schema:
    """Between tokenise and publish: rejects of reading and tokenising."""
    return pa.schema(
        [
            pa.field("piece", pa.int32()),
            pa.field("row", pa.int64()),
            *(pa.field(name, pa.string()) for name in (*_FAULT, "row_id")),
        ]
    )


_FAULT = ("stage", "reason", "message", "payload")


def prediction_schema(job: Job, labels: tuple[str, ...], problem_type: str) -> pa.Schema:
    """The predictions table of a job: the same every night, also for zero rows."""
    task = load_task(job.task)
    return pa.schema(
        [
            *kept_fields(job),
            *request_fields(job),
            *task.fields(job, labels, problem_type),
            pa.field("row_id", pa.string()),
            pa.field("source_uri", pa.string()),
            pa.field("source_row", pa.int64()),
            pa.field("token_count", pa.int32()),
            pa.field("truncated_tokens", pa.int32()),
            pa.field("shape", pa.string()),
            pa.field("artifact", pa.string()),
            pa.field("fingerprint", pa.string()),
        ]
    )


def rejects_table_schema() -> pa.Schema:
    """The rejects table, the same for every job."""
    return pa.schema(
        [
            pa.field("source_uri", pa.string()),
            pa.field("source_row", pa.int64()),
            *(pa.field(name, pa.string()) for name in _FAULT),
            pa.field("fingerprint", pa.string()),
        ]
    )


def table_schemas(job: Job, labels: tuple[str, ...], problem_type: str) -> dict[str, pa.Schema]:
    """The tables that readers query, by name. Their partition column `ds` is not in a plain file, but in its path."""
    return {"predictions": prediction_schema(job, labels, problem_type), "rejects": rejects_table_schema()}


def type_name(kind: pa.DataType) -> str:
    """A column's type in the words of job files: `string`, `list<float>`, `struct<a: int64>`."""
    if pa.types.is_list(kind):
        return f"list<{type_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {type_name(field.type)}' for field in kind)}>"
    return next(name for name, arrow in ARROW_TYPES.items() if arrow == kind)
