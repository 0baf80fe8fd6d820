"""`lengthwise schema` and `lengthwise sweep`: the columns of a job's tables, and what may be removed beside them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pipeline.terminal import JobFile, Json, make_context, show

_ANY_DATE = "2000-01-01"
"""Neither belongs to one night."""


def schema(
    job: JobFile,
    accept: Annotated[bool, typer.Option("--accept", help="declare the job's columns for all later nights")] = False,
    as_json: Json = False,
) -> None:
    """Show the columns that a job writes, and how they differ from the published ones."""
    from pipeline import declared_schema, render
    from pipeline.models import job_model

    context = make_context(job, _ANY_DATE)
    _, model = job_model(context)
    now = declared_schema.declared_by(context, model)
    changes = declared_schema.differences(declared_schema.recorded(context) or {}, now)
    if accept:
        declared_schema.accept_schema(context, model)
    result: dict[str, Any] = {"tables": now, "changes": changes, "accepted": accept}
    show(result, as_json, lambda _: render.schema_view(now, changes, accept))


def sweep(job: JobFile, as_json: Json = False) -> None:
    """Remove what abandoned and replaced runs of a job left, once nobody used it for output.grace_hours."""
    from pipeline import steps

    found = steps.sweep(make_context(job, _ANY_DATE))
    show(found, as_json, lambda _: f"{found['removed']} objects removed in {found['partitions']} partitions")


def add_to(app: typer.Typer) -> None:
    """As commands of their own."""
    app.command()(schema)
    app.command()(sweep)
