"""Step 7, commit: check that nothing was lost or doubled, then make the partition visible at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pipeline.budget import check_budget
from pipeline.context import Context
from pipeline.declared_schema import claim_schema
from pipeline.errors import ConservationError, StorageError, WorkerError
from pipeline.layout import BATCH_FILES, part_object, part_summary
from pipeline.manifest import Manifest, committed
from pipeline.publish import PartSummary, load_summary
from pipeline.published import is_published, published_version
from pipeline.rejects import INFER_REASONS
from pipeline.retry import base_version, origin
from pipeline.run_plan import RunPlan
from pipeline.snapshot import load_snapshot
from pipeline.tables import Seen, Staged, StagedPart, staged_names, table_format
from pipeline.tokenized import load_counts


def commit_run(context: Context, plan: RunPlan) -> Manifest:
    """Publish a run whose splits are all staged; a second call does nothing.

    Each table, and each file of the Batch API, is replaced atomically, then the manifest is swapped. A crash in between
    leaves an old manifest over newer files, which is not published for any run: the next one does it all again, to the
    same end. Raises RejectBudgetError, ConservationError, JobError (the declared schema changed) and StorageError
    (another run of the partition committed meanwhile).
    """
    tables = table_format(context)
    seen = tables.look(context)  # before the manifest: whatever replaces it from here on makes one of our writes fail
    etag = _manifest_etag(context)
    done = published_version(context, plan, seen)
    if done is not None:
        return done
    _require_newest(context, plan)
    base = base_version(context, plan.retry_of) if plan.retry_of else None
    summaries = [_summary(context, plan, split) for split in range(plan.parts)]
    _check_conservation(context, plan, summaries, base)
    if base is None:
        check_budget(plan.job.reject_budget, sum(s.rows for s in summaries), [s.reasons for s in summaries])
    elif sum(summary.predicted for summary in summaries) == base.predicted:
        context.say(f"commit: ds={context.ds}: none of {base.rejected:,} rejects was predicted; nothing was changed")
        return base
    claim_schema(context, plan.model)
    manifest = _manifest(context, plan, summaries, _replace(context, plan, summaries, seen), base)
    data = json.dumps(manifest.to_json(), sort_keys=True).encode()
    swapped = context.objects.put_if(context.layout.manifest(context.ds), data, etag)
    if not swapped and not is_published(context, plan):  # another process of this very run may have been quicker
        raise StorageError(f"ds={context.ds}: another run committed this partition at the same time; run again")
    context.say(f"commit: ds={context.ds}: {manifest.predicted:,} predicted, {manifest.rejected:,} rejected")
    return manifest


def _require_newest(context: Context, plan: RunPlan) -> None:
    manifest = committed(context)
    if manifest is not None and manifest.generation > plan.generation:
        raise StorageError(
            f"ds={context.ds} was started over (--fresh) and published after this run was planned; nothing was "
            "changed. Run again"
        )


def _replace(
    context: Context, plan: RunPlan, summaries: Sequence[PartSummary], seen: Seen
) -> dict[str, list[dict[str, Any]]]:
    parts = {
        table: [
            StagedPart(part_object(plan.uri, table, summary.split), summary.files[table]["sha256"])
            for summary in summaries
        ]
        for table in staged_names(plan.job)
    }
    rows = {table: sum(summary.files[table]["rows"] for summary in summaries) for table in parts}
    try:
        return table_format(context).replace(context, Staged(plan.fingerprint, parts, rows), seen)
    except FileNotFoundError as error:
        for summary in summaries:  # which says that its parts are staged
            context.objects.delete(part_summary(plan.uri, summary.split))
        raise StorageError(f"{error} is gone: run again, staged parts are made anew") from error


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
        lines = [summary.files[name]["rows"] for name in BATCH_FILES if name in summary.files]
        if lines and lines != [summary.predicted, summary.rejected]:
            raise ConservationError(
                f"split {summary.split}: {lines} lines of {', '.join(BATCH_FILES)} for {summary.predicted} predicted "
                f"and {summary.rejected} rejected rows; nothing was published. Please report this with {plan.uri}"
            )
    planned = sum(shard.rows for shard in plan.shards)
    found = [summary.reasons.get(reason, 0) for summary in summaries for reason in INFER_REASONS]
    accepted = sum(summary.predicted + summary.duplicates for summary in summaries) + sum(found)
    accepted -= base.predicted if base else 0
    if planned != accepted:
        raise ConservationError(f"{planned} rows were planned and {accepted} came back; nothing was published")
    rows = sum(summary.rows for summary in summaries)
    if base is not None and rows != base.rows:
        raise ConservationError(f"{base.rows} rows were published and {rows} would be; nothing was changed")


def _manifest(
    context: Context,
    plan: RunPlan,
    summaries: Sequence[PartSummary],
    files: dict[str, list[dict[str, Any]]],
    base: Manifest | None,
) -> Manifest:
    reasons: dict[str, int] = {}
    for summary in summaries:
        for reason, count in summary.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + count
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
        generation=plan.generation,
        origin=origin(plan, load_snapshot(context.objects, plan.snapshot_uri)),
        retried=(*base.retried, base.fingerprint) if base else (),
    )


def _manifest_etag(context: Context) -> str | None:
    try:
        return context.objects.head(context.layout.manifest(context.ds)).etag
    except FileNotFoundError:
        return None
