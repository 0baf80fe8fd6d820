"""What of a partition's finished or abandoned work may go: never what a run that is still going on can need."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from pipeline.context import Context
from pipeline.layout import BATCH_FILES, BATCH_TABLE
from pipeline.manifest import committed
from pipeline.run_plan import RunPlan, load_run
from pipeline.tables import TABLES

_WORK = ("runs", "tokens", "snapshots")
_MARKERS_FIRST = ("/summaries/", "/meta.json")
"""Objects that say that others are there go before those: a run that finds them would count on what is gone."""


def sweep_run(context: Context, plan: RunPlan) -> None:
    """Remove what a committed run no longer needs: shard results and staged parts. Its plan and its events stay."""
    for folder in ("summaries", "shards", *TABLES, *BATCH_FILES, "duplicates"):
        for uri in context.objects.list(f"{plan.uri}/{folder}/"):
            context.objects.delete(uri)


def sweep_partition(context: Context, before: float) -> int:
    """Remove the work of abandoned and replaced runs, and what interrupted writes left; returns how many objects.

    A run, a tokenised input or a snapshot is abandoned when nothing of it was written since `before` (epoch seconds)
    and neither the published run nor one that is not abandoned refers to it.
    """
    work = _Work.find(context)
    keep = _published_work(context)
    for run, modified in work.runs.items():
        if max(modified.values()) >= before:
            keep |= {run, *_referred(context, run)}
    removed = sum(
        context.objects.discard_unfinished(prefix, before)
        for prefix in (
            *(context.layout.work(folder, context.ds) for folder in _WORK),
            *(context.layout.partition(table, context.ds) for table in (*TABLES, BATCH_TABLE, "metrics")),
        )
    )
    for name, modified in {**work.runs, **work.others}.items():
        if name not in keep and max(modified.values()) < before:
            removed += _delete(context, list(modified))
    return removed


def partitions(context: Context) -> list[str]:
    """Every date of which there is work or a published version."""
    state = context.layout.state + "/"
    found = set()
    for folder in (*_WORK, "commits"):
        for uri in context.objects.list_modified(f"{state}{folder}/"):
            name = uri[len(state) :].split("/")[1]
            found.add(name.removeprefix("ds="))
    return sorted(found)


@dataclass(frozen=True, slots=True)
class _Work:
    """Folders of a partition's work: URI of each -> URI of each object in it -> when it was written."""

    runs: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    others: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))

    @classmethod
    def find(cls, context: Context) -> _Work:
        work = cls()
        for folder in _WORK:
            prefix = context.layout.work(folder, context.ds)
            for uri, modified in context.objects.list_modified(prefix).items():
                name = prefix + uri[len(prefix) :].split("/")[0].removesuffix(".json")  # of a snapshot: and its events
                (work.runs if folder == "runs" else work.others)[name][uri] = modified
        return work


def _published_work(context: Context) -> set[str]:
    manifest = committed(context)
    if manifest is None:
        return set()
    run = context.layout.run(context.ds, manifest.fingerprint, manifest.generation)
    return {run, *_referred(context, run)}


def _referred(context: Context, run: str) -> set[str]:
    """The tokens and the snapshot of a run; none while it has no plan."""
    try:
        plan = load_run(context.objects, run)
    except FileNotFoundError:
        return set()
    return {plan.tokens_uri, plan.snapshot_uri.removesuffix(".json")}


def _delete(context: Context, uris: list[str]) -> int:
    for uri in sorted(uris, key=lambda uri: not any(marker in uri for marker in _MARKERS_FIRST)):
        context.objects.delete(uri)
    return len(uris)
