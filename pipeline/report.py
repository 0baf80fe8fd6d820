"""Step 8, report: what every second and dollar bought, derived from the manifest, the plan and the event log alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from compile.planner import make_plan
from compile.shapes import ShapePlan
from pipeline.context import Context
from pipeline.event_tally import DeviceUsage, EventTally, ShardEvent
from pipeline.events import read_events, union_seconds
from pipeline.layout import snapshot_events_folder
from pipeline.manifest import Manifest
from pipeline.parquet_files import parquet_bytes
from pipeline.report_generation import FIGURES, generation_figures
from pipeline.run_plan import RunPlan
from pipeline.toolchain import job_toolchain

STEPS = ("snapshot", "tokenize", "plan", "compile", "infer", "publish", "commit")


def make_report(plan: RunPlan, manifest: Manifest, tally: EventTally, shape_plan: ShapePlan) -> dict[str, Any]:
    """The report of a committed run. Seconds are wall-clock, over all attempts, with overlaps counted once.

    `shape_plan` is the run's, at the costs that are known today.
    """
    shards, events = tally.shards, tally.steps
    seconds = {step: union_seconds(_intervals(events, step)) for step in STEPS}
    total = round(sum(seconds.values()), 3)
    price = plan.job.price_per_hour
    cost = None if price is None else total / 3600 * price
    return {
        "job": plan.job.name,
        "ds": plan.ds,
        "fingerprint": plan.fingerprint,
        "generation": plan.generation,
        "model": plan.job.model.uri,
        "target": plan.job.target,
        "precision": plan.precision,
        "rows": manifest.rows,
        "predicted": manifest.predicted,
        "rejected": manifest.rejected,
        "reject_reasons": manifest.reasons,
        **_tokens(plan, manifest, shards),
        "tokens": generation_figures(shards, seconds["infer"]) if plan.job.generate else None,
        "seconds": {step: round(value, 3) for step, value in seconds.items()},
        "peak_memory_mb": {step: _peak_memory_mb(events, step) for step in STEPS},
        "total_seconds": total,
        "rows_per_second": manifest.predicted / total if total else None,
        "infer_rows_per_second": manifest.predicted / seconds["infer"] if seconds["infer"] else None,
        "infer_predicted_seconds": _predicted_seconds(shape_plan, shards),
        "infer_load_seconds": round(sum(shard.load_s for shard in shards), 3),
        "infer_execute_seconds": round(sum(shard.execute_s for shard in shards), 3),
        "drift": plan.drift,
        "infer_cpu_seconds": round(sum(shard.cpu_s for shard in shards), 3),
        "compilations_in_infer": sum(e.get("compilations", 0) for e in events if e["event"] == "infer"),
        "repeated_shards": tally.attempts - len(shards),
        "cores": _cores(tally, seconds["infer"]),
        "shapes": _shapes(plan, shape_plan, shards),
        "price_per_hour": price,
        "cost": cost,
        "cost_per_million_rows": cost / manifest.predicted * 1e6 if cost is not None and manifest.predicted else None,
    }


def _tokens(plan: RunPlan, manifest: Manifest, shards: Sequence[ShardEvent]) -> dict[str, Any]:
    """Of a generation job, tokens of prompts: `real_tokens` once per row, the efficiency over all that was computed."""
    slot_tokens = sum(shard.slot_tokens for shard in shards)
    real_tokens = sum(shard.real_tokens for shard in shards) if plan.job.generate else manifest.real_tokens
    return {
        "truncated_rows": manifest.truncated_rows,
        "truncated_tokens": manifest.truncated_tokens,
        "real_tokens": manifest.real_tokens,
        "slot_tokens": slot_tokens,
        "padding_efficiency": real_tokens / slot_tokens if slot_tokens else None,
    }


def write_report(context: Context, plan: RunPlan, manifest: Manifest, before: dict[str, Any] | None) -> dict[str, Any]:
    """Write report.json and the partition's row of the metrics table; returns the report. `before` is the last one.

    A partition whose rejects were run again keeps the figures of its first run, with today's counts of rows and tokens;
    what each retry took is listed beside them.
    """
    report = _run_report(context, plan, manifest) | {"retries": []}
    if before is not None and plan.retry_of == before["fingerprint"]:
        counts = {name: report[name] for name in _COUNTS}
        report = before | counts | {"retries": [*before["retries"], _retry(plan, report)]}
    context.objects.put(context.layout.report(context.ds), json.dumps(report, indent=1).encode())
    metrics = context.layout.partition("metrics", context.ds) + "part-00000.parquet"
    context.objects.put(metrics, parquet_bytes(_metrics_table(report)))
    return report


_COUNTS = (
    "fingerprint", "rows", "predicted", "rejected", "reject_reasons",
    "truncated_rows", "truncated_tokens", "real_tokens",
)  # fmt: skip
"""What a report says of the partition, whatever it took to make it."""


def _retry(plan: RunPlan, report: dict[str, Any]) -> dict[str, Any]:
    """What a retry of rejects did: the rows that it executed, and what that took."""
    names = ("fingerprint", "target", "precision", "seconds", "total_seconds", "slot_tokens")
    return {"rows": sum(shard.rows for shard in plan.shards), **{name: report[name] for name in names}}


def _run_report(context: Context, plan: RunPlan, manifest: Manifest) -> dict[str, Any]:
    """One run's report."""
    logs = (snapshot_events_folder(plan.snapshot_uri, plan.retry_of), f"{plan.uri}/events/")
    tally = EventTally(chain.from_iterable(read_events(context.objects, log) for log in logs))
    costs = job_toolchain(context, plan.model).costs()
    return make_report(plan, manifest, tally, make_plan(plan.shape_plan.shapes, costs))


def load_report(context: Context) -> dict[str, Any] | None:
    """The last report of the partition; None when it was never published."""
    try:
        report: dict[str, Any] = json.loads(context.objects.get(context.layout.report(context.ds)))
    except FileNotFoundError:
        return None
    return report


def _intervals(events: list[dict[str, Any]], step: str) -> list[tuple[float, float]]:
    return [(event["started"], event["ended"]) for event in events if event["event"] == step]


def _peak_memory_mb(events: list[dict[str, Any]], step: str) -> float | None:
    """Largest resident memory of any process that did the step; a process may have done other steps before."""
    peaks = [event["peak_memory_bytes"] for event in events if event["event"] == step and "peak_memory_bytes" in event]
    return round(max(peaks) / 1e6, 1) if peaks else None


def _predicted_seconds(plan: ShapePlan, shards: Sequence[ShardEvent]) -> float:
    """What the shape plan's costs say that the executed batches take, in seconds of one core."""
    seconds = {str(shape): cost for shape, cost in zip(plan.shapes, plan.seconds, strict=True)}
    total: float = sum(shard.batches * seconds[shard.shape] for shard in shards)
    return round(total, 3)


def _cores(tally: EventTally, infer_seconds: float) -> list[dict[str, Any]]:
    """Per copy's (first) core, the share of the infer step's seconds in which it executed batches."""
    return [
        {
            "host": host,
            "core": core,
            "shards": tally.shards_done[host, core],
            "execute_seconds": round(busy_s, 3),
            "busy_share": busy_s / infer_seconds if infer_seconds else None,
            **(_device(tally.devices[host, core]) if (host, core) in tally.devices else {}),
        }
        for (host, core), busy_s in sorted(tally.busy_s.items())
    ]


def _device(usage: DeviceUsage) -> dict[str, Any]:
    """What neuron-monitor saw of the copy's NeuronCores; the share is of the seconds that it reported on."""
    return {
        "device_busy_share": usage.busy_s / usage.monitored_s if usage.monitored_s else None,
        "device_memory_mb": round(usage.memory_bytes / 1e6, 1),
        "device_errors": dict(usage.errors),
    }


def _shapes(plan: RunPlan, shape_plan: ShapePlan, shards: Sequence[ShardEvent]) -> list[dict[str, Any]]:
    found = []
    for index, shape in enumerate(plan.shape_plan.shapes):
        own = [shard for shard in shards if shard.shape == str(shape)]
        slot, real = sum(shard.slot_tokens for shard in own), sum(shard.real_tokens for shard in own)
        found.append(
            {
                "shape": str(shape),
                "artifact": plan.artifacts[index],
                "rows": sum(shard.rows for shard in own),
                "batches": sum(shard.batches for shard in own),
                "slot_tokens": slot,
                "real_tokens": real,
                "padding_efficiency": real / slot if slot else None,
                "execute_seconds": round(sum(shard.execute_s for shard in own), 3),
                "predicted_batch_seconds": shape_plan.seconds[index],
                "measured": shape_plan.measured[index],
            }
        )
    return found


def _metrics_table(report: dict[str, Any]) -> pa.Table:
    """One row a night; the same columns every night of a job, so that SQL over all of them works."""
    types = {int: pa.int64(), float: pa.float64(), str: pa.string()}
    columns: dict[str, tuple[type, Any]] = {
        name: (kind, report[name])
        for kind, names in {
            str: ("job", "fingerprint", "model", "target", "precision"),
            int: (
                "rows", "predicted", "rejected", "truncated_rows", "truncated_tokens", "real_tokens", "slot_tokens",
                "compilations_in_infer", "repeated_shards",
            ),
            float: (
                "padding_efficiency", "total_seconds", "rows_per_second", "infer_rows_per_second",
                "infer_execute_seconds", "infer_cpu_seconds", "infer_predicted_seconds", "price_per_hour", "cost",
                "cost_per_million_rows",
            ),
        }.items()
        for name in names
    }  # fmt: skip
    if report["tokens"]:
        whole = ("prompt_tokens", "generated_tokens")
        columns |= {name: (int if name in whole else float, report["tokens"][name]) for name in FIGURES}
    columns |= {f"{step}_seconds": (float, report["seconds"][step]) for step in STEPS}
    columns |= {f"{step}_peak_memory_mb": (float, report["peak_memory_mb"][step]) for step in STEPS}
    return pa.table({name: pa.array([value], types[kind]) for name, (kind, value) in columns.items()})
