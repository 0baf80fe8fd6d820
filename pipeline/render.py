"""What people see on the terminal: tables of plans, reports and the doctor. Takes values, returns rich renderables."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from compile.shapes import ShapePlan


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
    if report["cost"] is not None:
        rows.insert(4, ("cost", f"{report['cost']:.6f} ({_number(report['cost_per_million_rows'])} per million rows)"))
    for name, value in rows:
        table.add_row(name, value)
    return table


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
    parts = [f"core {core['core']} on {core['host']}: {_share(core['busy_share'])} busy" for core in report["cores"]]
    return Text("; ".join(parts))


def _rejects(report: dict[str, Any]) -> list[RenderableType]:
    reasons = ", ".join(f"{reason} {count}" for reason, count in report["reject_reasons"].items())
    return [Text(f"rejects: {reasons}")] if reasons else []


def plan_view(plans: list[tuple[str, ShapePlan, float, float, int]]) -> RenderableType:
    """Rows of (name, plan, predicted seconds of one core, padding efficiency, slot tokens)."""
    table = Table(title="shape plans for these lengths", title_justify="left")
    for name in ("plan", "graphs", "predicted core seconds", "padding efficiency", "shapes"):
        table.add_column(name, justify="left" if name in ("plan", "shapes") else "right", overflow="fold")
    for name, plan, seconds, efficiency, _ in plans:
        shapes = " ".join(map(str, plan.shapes))
        estimate = "" if all(plan.measured) else " (estimate)"
        table.add_row(name, str(len(plan.shapes)), f"{seconds:.2f}{estimate}", _share(efficiency), shapes)
    return table


def doctor_view(found: dict[str, Any]) -> RenderableType:
    """What this machine can run."""
    table = Table(title="targets", title_justify="left")
    for name in ("target", "can run", "precisions", "versions"):
        table.add_column(name, overflow="fold")
    for target in found["targets"]:
        versions = ", ".join(f"{name} {version}" for name, version in target["versions"].items())
        table.add_row(target["name"], target["unavailable"] or "yes", ", ".join(target["precisions"]), versions)
    lines = [f"{name}: {value}" for name, value in found["machine"].items()]
    return Group(Text("\n".join(lines)), table)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
