"""Step 7, commit: check that nothing was lost or doubled, then make the partition visible at once."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pipeline.budget import check_budget
from pipeline.context import Context
from pipeline.errors import ConservationError, StorageError, WorkerError
from pipeline.layout import part_object
from pipeline.manifest import Manifest, committed
from pipeline.publish import PartSummary, load_summary
from pipeline.rejects import INFER_REASONS
from pipeline.retry import base_version, origin
from pipeline.run_plan import RunPlan
from pipeline.snapshot import load_snapshot
from pipeline.tokenized import load_counts

TABLES = ("predictions", "rejects")


def is_published(context: Context, plan: RunPlan) -> bool:
    """Whether readers see exactly this run: same fingerprint, and every part is there with its size."""
    manifest = committed(context)
    if manifest is None or not manifest.holds(plan.fingerprint):
        return False
    return all(
        {(part["name"], part["size_bytes"]) for part in manifest.files[table]} == _present(context, table)
        for table in TABLES
    )


def _present(context: Context, table: str) -> set[tuple[str, int]]:
    prefix = context.layout.partition(table, context.ds)
    return {(uri[len(prefix) :], size) for uri, size in context.objects.sizes(prefix).items()}


def commit_run(context: Context, plan: RunPlan) -> Manifest:
    """Publish a run whose splits are all staged; a second call does nothing.

    Readers of a partition of one part see the old or the new version, by one atomic PUT. With several parts the new
    ones come first, then the manifest, then the old ones go: see README for what a reader may see in between.
    Raises RejectBudgetError, ConservationError, StorageError (another run of the partition committed meanwhile).
    """
    if is_published(context, plan):
        manifest = committed(context)
        assert manifest is not None
        return manifest
    etag = _manifest_etag(context)
    base = base_version(context, plan.retry_of) if plan.retry_of else None
    summaries = [_summary(context, plan, split) for split in range(plan.parts)]
    _check_conservation(context, plan, summaries, base)
    rows = sum(summary.rows for summary in summaries)
    if base is None:
        check_budget(plan.job.reject_budget, rows, [summary.reasons for summary in summaries])
    manifest = _manifest(context, plan, summaries, base)
    if base is not None and manifest.predicted == base.predicted:
        context.say(f"commit: ds={context.ds}: none of {base.rejected:,} rejects was predicted; nothing was changed")
        return base
    for table in TABLES:
        for summary, part in zip(summaries, manifest.files[table], strict=True):
            source = part_object(plan.uri, table, summary.split)
            context.objects.copy(source, context.layout.partition(table, context.ds) + part["name"])
    data = json.dumps(manifest.to_json(), sort_keys=True).encode()
    swapped = context.objects.put_if(context.layout.manifest(context.ds), data, etag)
    if not swapped and not is_published(context, plan):  # another process of this very run may have been quicker
        raise StorageError(f"ds={context.ds}: another run committed this partition at the same time; run again")
    _remove_others(context, manifest)
    context.say(f"commit: ds={context.ds}: {manifest.predicted:,} predicted, {manifest.rejected:,} rejected")
    return manifest


def sweep(context: Context, plan: RunPlan) -> None:
    """Remove what a committed run no longer needs: shard results and staged parts. Its plan and its events stay.

    Summaries go first: one that outlived its parts would say that they are staged.
    """
    for folder in ("summaries", "shards", *TABLES):
        for uri in context.objects.list(f"{plan.uri}/{folder}/"):
            context.objects.delete(uri)


def _summary(context: Context, plan: RunPlan, split: int) -> PartSummary:
    try:
        return load_summary(context, plan, split)
    except FileNotFoundError:
        raise WorkerError(f"split {split} of run {plan.fingerprint} is not published; run the publish step") from None


def _check_conservation(
    context: Context, plan: RunPlan, summaries: Sequence[PartSummary], base: Manifest | None
) -> None:
    """A retry has read rejects alone: what it keeps of the published version `base` is counted as a whole."""
    for summary in summaries:
        read = load_counts(context.objects, plan.tokens_uri, summary.split).rows if plan.row_offsets else 0
        if base is not None:
            read = summary.rows
        if not read == summary.rows == summary.predicted + summary.rejected:
            raise ConservationError(
                f"split {summary.split}: {read} rows were read, {summary.predicted} predicted and {summary.rejected} "
                f"rejected; nothing was published. Please report this with {plan.uri}"
            )
    planned = sum(shard.rows for shard in plan.shards)
    found = [summary.reasons.get(reason, 0) for summary in summaries for reason in INFER_REASONS]
    accepted = sum(summary.predicted for summary in summaries) + sum(found) - (base.predicted if base else 0)
    if planned != accepted:
        raise ConservationError(f"{planned} rows were planned and {accepted} came back; nothing was published")
    rows = sum(summary.rows for summary in summaries)
    if base is not None and rows != base.rows:
        raise ConservationError(f"{base.rows} rows were published and {rows} would be; nothing was changed")


def _manifest(context: Context, plan: RunPlan, summaries: Sequence[PartSummary], base: Manifest | None) -> Manifest:
    reasons: dict[str, int] = {}
    for summary in summaries:
        for reason, count in summary.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + count
    files = {table: [{"name": _part_name(plan, s.split), **s.files[table]} for s in summaries] for table in TABLES}
    return Manifest(
        fingerprint=plan.fingerprint,
        ds=plan.ds,
        rows=sum(summary.rows for summary in summaries),
        predicted=sum(summary.predicted for summary in summaries),
        rejected=sum(summary.rejected for summary in summaries),
        reasons=dict(sorted(reasons.items())),
        real_tokens=sum(summary.real_tokens for summary in summaries),
        truncated_rows=sum(summary.truncated_rows for summary in summaries),
        truncated_tokens=sum(summary.truncated_tokens for summary in summaries),
        files=files,
        origin=origin(plan, load_snapshot(context.objects, plan.snapshot_uri)),
        retried=(*base.retried, base.fingerprint) if base else (),
    )


def _part_name(plan: RunPlan, split: int) -> str:
    """A lone part has one name always, so that one PUT swaps it; several carry the run's, so none is overwritten."""
    return "part-00000.parquet" if plan.parts == 1 else f"part-{split:05d}-{plan.fingerprint[:12]}.parquet"


def _manifest_etag(context: Context) -> str | None:
    try:
        return context.objects.head(context.layout.manifest(context.ds)).etag
    except FileNotFoundError:
        return None


def _remove_others(context: Context, manifest: Manifest) -> None:
    for table in TABLES:
        prefix = context.layout.partition(table, context.ds)
        current = {part["name"] for part in manifest.files[table]}
        for uri in context.objects.list(prefix):
            if uri[len(prefix) :] not in current:
                context.objects.delete(uri)
