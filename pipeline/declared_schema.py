"""The columns that a job's tables have every night: declared by the first one, changed only by an explicit act."""

from __future__ import annotations

import json

from compile.model import ModelInfo
from pipeline.columns import table_schemas, type_name
from pipeline.context import Context
from pipeline.errors import JobError
from pipeline.tables import table_format

Declared = dict[str, dict[str, str]]
"""Table -> name -> type of each column, in order."""


def declared_by(context: Context, model: ModelInfo) -> Declared:
    """What the job file and its model say now."""
    schemas = table_schemas(context.job, model.labels, model.problem_type)
    return {table: {field.name: type_name(field.type) for field in schema} for table, schema in schemas.items()}


def recorded(context: Context) -> Declared | None:
    """What the published partitions have; None before the first one."""
    try:
        found: Declared = json.loads(context.objects.get(context.layout.schema))
    except FileNotFoundError:
        return None
    return found


def check_schema(context: Context, model: ModelInfo) -> None:
    """Raises JobError, with every difference, when tonight's columns would differ from the published ones."""
    wrong = differences(recorded(context) or {}, declared_by(context, model))
    if wrong:
        raise JobError(
            f"the columns of {context.job.output.uri} would change: {'; '.join(wrong)}. Nothing was done. Change the "
            "job back, give another output.uri, or accept the change for all later nights: lengthwise schema JOB "
            "--accept (partitions that are published keep their columns until they are run again)"
        )


def claim_schema(context: Context, model: ModelInfo) -> None:
    """The first partition declares the schema for all others. Raises JobError when it is another one already."""
    context.objects.put_new(context.layout.schema, _encoded(declared_by(context, model)))
    check_schema(context, model)


def accept_schema(context: Context, model: ModelInfo) -> None:
    """Declare tonight's columns for all later nights. Raises JobError where published tables cannot have them."""
    table_format(context).check_columns(context, table_schemas(context.job, model.labels, model.problem_type))
    context.objects.put(context.layout.schema, _encoded(declared_by(context, model)))


def differences(before: Declared, now: Declared) -> list[str]:
    """One sentence per difference; none when nothing is published yet."""
    common = [table for table in now if table in before]
    return [text for table in common for text in _changes(table, before[table], now[table])]


def _changes(table: str, old: dict[str, str], new: dict[str, str]) -> list[str]:
    found = [f"{table} loses column {name} ({kind})" for name, kind in old.items() if name not in new]
    found += [f"{table} gains column {name} ({kind})" for name, kind in new.items() if name not in old]
    changed = [name for name in old if name in new and old[name] != new[name]]
    found += [f"{table}.{name} changes from {old[name]} to {new[name]}" for name in changed]
    if not found and list(old) != list(new):
        found.append(f"the columns of {table} change their order to {', '.join(new)}")
    return found


def _encoded(declared: Declared) -> bytes:
    return json.dumps(declared, indent=1).encode()
