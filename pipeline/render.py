"""What people see on the terminal: tables of plans, reports and the doctor. Takes values, returns rich renderables."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.plan_comparison import PlanComparison


def report_view(report: dict[str, Any]) -> RenderableType:
    """A night's throughput report."""
    return Group(_headline(report), _steps(report), _shapes(report), _cores(report), *_rejects(report))


def _headline(report: dict[str, Any]) -> RenderableType:
    table = Table(title=f"{report['job']}  ds={report['ds']}", title_justify="left", show_header=False)
    table.add_column()
    table.add_column()
    efficiency = report["padding_efficiency"]
    rows = [
        ("rows", f"{report['rows']:,} = {report['predicted']:,} predicted + {report['rejected']:,} rejected"),
        ("truncated", f"{report['truncated_rows']:,} rows, {report['truncated_tokens']:,} tokens cut"),
        ("tokens", f"{report['real_tokens']:,} real in {report['slot_tokens']:,} slots ({_share(efficiency)})"),
        (
            "speed",
            f"{_number(report['infer_rows_per_second'])} rows/s in infer, {_number(report['rows_per_second'])} overall",
        ),
        (
            "target",
            f"{report['target']} {report['precision']}, {report['compilations_in_infer']} compilations in infer",
        ),
        ("fingerprint", report["fingerprint"]),
    ]
    if report.get("tokens"):
        rows[2:4] = [*_generation(report["tokens"], efficiency), rows[3]]
    if report["repeated_shards"]:
        rows.append(("repeated", f"{report['repeated_shards']:,} shards were executed more than once"))
    if report["drift"] and report["drift"]["saved_share"] > 0:
        drift = report["drift"]
        verb = "saves" if drift["replaced"] else "would save"
        rows.append(
            ("new plan", f"{verb} {drift['saved_seconds']:.1f} core seconds a night ({drift['saved_share']:.1%})")
        )
    if report["cost"] is not None:
        rows.insert(4, ("cost", f"{report['cost']:.6f} ({_number(report['cost_per_million_rows'])} per million rows)"))
    for name, value in rows:
        table.add_row(name, value)
    return table


def _generation(found: dict[str, Any], efficiency: float | None) -> list[tuple[str, str]]:
    rates = ("prompt", "generated", "total")
    speed = ", ".join(f"{_number(found[f'{name}_tokens_per_second'])} {name}" for name in rates)
    occupied = f", decode slots {_share(found['occupancy'])} occupied" if found["occupancy"] is not None else ""
    return [
        ("tokens", f"{found['prompt_tokens']:,} of prompts ({_share(efficiency)} of slots)"),
        ("generated", f"{found['generated_tokens']:,} tokens{occupied}"),
        ("tokens/s", f"{speed}, in infer"),
    ]


def _steps(report: dict[str, Any]) -> RenderableType:
    table = Table(title="seconds and peak memory of a process, by step", title_justify="left")
    for step in report["seconds"]:
        table.add_column(step, justify="right")
    table.add_column("total", justify="right")
    table.add_row(*(f"{value:.2f}" for value in report["seconds"].values()), f"{report['total_seconds']:.2f}")
    table.add_row(*(f"{_number(value)} MB" for value in report["peak_memory_mb"].values()), "", style="dim")
    return table


def _shapes(report: dict[str, Any]) -> RenderableType:
    table = Table(title="shapes", title_justify="left")
    for name in ("shape", "rows", "batches", "padding efficiency", "ms a batch", "planned ms"):
        table.add_column(name, justify="right")
    for shape in report["shapes"]:
        batch_ms = shape["execute_seconds"] / shape["batches"] * 1e3 if shape["batches"] else None
        planned = f"{shape['predicted_batch_seconds'] * 1e3:.1f}" + ("" if shape["measured"] else " (estimate)")
        table.add_row(
            shape["shape"],
            f"{shape['rows']:,}",
            f"{shape['batches']:,}",
            _share(shape["padding_efficiency"]),
            "-" if batch_ms is None else f"{batch_ms:.1f}",
            planned,
        )
    return table


def _cores(report: dict[str, Any]) -> RenderableType:
    return Text("; ".join(f"core {core['core']} on {core['host']}: {_busy(core)}" for core in report["cores"]))


def _busy(core: dict[str, Any]) -> str:
    busy = f"{_share(core['busy_share'])} busy"
    if "device_busy_share" not in core:
        return busy
    errors = ", ".join(f"{kind} {count}" for kind, count in core["device_errors"].items()) or "no"
    device = f"device {_share(core['device_busy_share'])} busy, {_number(core['device_memory_mb'])} MB, {errors} errors"
    return f"{busy} ({device})"


def _rejects(report: dict[str, Any]) -> list[RenderableType]:
    reasons = ", ".join(f"{reason} {count}" for reason, count in report["reject_reasons"].items())
    return [Text(f"rejects: {reasons}")] if reasons else []


def plan_view(found: PlanComparison) -> RenderableType:
    """The shapes of a plan and the plans that it is compared with; seconds are of one core."""
    shapes = Table(title="shapes on these lengths", title_justify="left")
    for name in ("shape", "rows", "batches", "padding efficiency", "ms a batch", "core seconds"):
        shapes.add_column(name, justify="right")
    for line in found.shapes:
        share = line.real_tokens / line.slot_tokens if line.slot_tokens else None
        batch_ms = line.seconds / line.batches * 1e3 if line.batches else None
        cost = "-" if batch_ms is None else f"{batch_ms:.1f}" + ("" if line.measured else " (estimate)")
        shapes.add_row(
            str(line.shape), f"{line.rows:,}", f"{line.batches:,}", _share(share), cost, f"{line.seconds:.2f}"
        )
    plans = Table(title="compared with", title_justify="left")
    for name in ("plan", "graphs", "core seconds", "ratio", "padding efficiency"):
        plans.add_column(name, justify="left" if name == "plan" else "right")
    for plan in found.plans:
        ratio = plan.seconds / found.plans[0].seconds
        estimate = "" if all(plan.plan.measured) else " (estimate)"
        graphs = str(len(plan.plan.shapes))
        plans.add_row(plan.name, graphs, f"{plan.seconds:.2f}{estimate}", f"{ratio:.3f}", _share(plan.efficiency))
    return Group(shapes, plans)


def artifacts_view(manifests: list[dict[str, Any]]) -> RenderableType:
    """One line per artifact of a store, from its manifest as JSON."""
    table = Table(title="artifacts", title_justify="left")
    for name in ("key", "shape", "target", "precision", "ms a batch", "compile s", "parity", "largest difference"):
        table.add_column(name, overflow="fold")
    for item in manifests:
        spec, parity, timing = item["spec"], item["parity"], item["timing"]
        verdict = "pending" if parity is None else "passed" if parity["passed"] else "failed"
        table.add_row(
            item["key"],
            spec["shape"],
            spec["target"],
            spec["precision"],
            f"{timing['median_s'] * 1e3:.1f}" if timing else "-",
            f"{item['compile_seconds']:.2f}",
            verdict,
            f"{parity['max_abs_logit']:.2g}" if parity else "-",
        )
    return table


def schema_view(tables: dict[str, dict[str, str]], changes: list[str], accepted: bool) -> RenderableType:
    """A job's declared columns, and how they differ from the published ones."""
    table = Table(title="columns", title_justify="left")
    for name in ("table", "column", "type"):
        table.add_column(name)
    for name, columns in tables.items():
        for column, kind in columns.items():
            table.add_row(name, column, kind)
    verdict = "accepted: " if accepted else "not accepted (give --accept): "
    lines = [verdict + change for change in changes] or ["as in the published partitions, or none is published yet"]
    return Group(table, Text("\n".join(lines)))


def doctor_view(found: dict[str, Any]) -> RenderableType:
    """What this machine can run."""
    lines = [f"{name}: {value}" for name, value in found["machine"].items()]
    tables = [_targets(f"targets of task {task}", found[key]) for task, key in DOCTOR_TABLES.items()]
    lines += [*_neuron(found["neuron"]), *_leases(found["leases"])]
    return Group(Text("\n".join(lines)), *tables, _stacks(found["stacks"]))


DOCTOR_TABLES = {"classify": "targets", "generate": "decoders"}


def _targets(title: str, targets: list[dict[str, Any]]) -> RenderableType:
    table = Table(title=title, title_justify="left")
    for name in ("target", "can run", "precisions", "versions"):
        table.add_column(name, overflow="fold")
    for target in targets:
        versions = ", ".join(f"{name} {version}" for name, version in target["versions"].items())
        able = f"compile only: {target['compile_only']}" if target.get("compile_only") else "yes"
        if target.get("double"):
            able += "; over the test double of the SDK: no result of a device"
        table.add_row(target["name"], target["unavailable"] or able, ", ".join(target["precisions"]), versions)
    return table


def _neuron(neuron: dict[str, Any]) -> list[str]:
    lines = [f"NeuronCores: {neuron['unavailable'] or ', '.join(map(str, neuron['usable_cores']))}"]
    for device in neuron["devices"]:
        users = ", ".join(f"pid {user['pid']} {user['command']}".strip() for user in device["processes"])
        lines.append(
            f"  device {device['device']}: cores {', '.join(map(str, device['cores']))}; "
            f"{device['memory_bytes'] / (1 << 30):.0f} GiB; used by {users or 'nobody'}"
        )
    return lines


def _leases(leases: list[dict[str, Any]]) -> list[str]:
    lines = []
    for lease in leases:
        cores = ", ".join(map(str, lease["cores"]))
        kind = "NeuronCore" if lease["kind"] == "neuron" else "core"
        state = f"{kind} {cores}: leased by" if cores else f"{kind}s: waited for by"
        lines.append(f"{state} job {lease['job']}, pid {lease['pid']}, for {lease['seconds']:.0f} s")
    return lines


def _stacks(rows: list[dict[str, str]]) -> RenderableType:
    table = Table(title="AWS Neuron: supported stacks, and what they were tested on", title_justify="left")
    names = ("device", "task", "stack", "tested", "future")
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(row[name] for name in names))
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
