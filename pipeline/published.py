"""Whether readers see exactly a run: its manifest is the committed one, and its files are there."""

from __future__ import annotations

from pipeline.context import Context
from pipeline.manifest import Manifest, committed
from pipeline.run_plan import RunPlan
from pipeline.tables import Seen, table_format


def is_published(context: Context, plan: RunPlan) -> bool:
    """Same fingerprint (or a retry of its rejects), not started over since, every file there as it was written."""
    manifest = _own_manifest(context, plan)
    tables = table_format(context)
    return manifest is not None and tables.shows(manifest, tables.look(context))


def published_version(context: Context, plan: RunPlan, seen: Seen) -> Manifest | None:
    """The run's manifest, None while it is not what readers see. `seen` was looked up before."""
    manifest = _own_manifest(context, plan)
    return manifest if manifest is not None and table_format(context).shows(manifest, seen) else None


def _own_manifest(context: Context, plan: RunPlan) -> Manifest | None:
    manifest = committed(context)
    if manifest is None or not manifest.holds(plan.fingerprint) or manifest.generation < plan.generation:
        return None
    return manifest
