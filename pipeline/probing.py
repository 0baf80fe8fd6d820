"""Measured costs before a job's first shape plan: a few shapes timed on the night's rows, where compiling is cheap."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compile.batches import TokenRow
from pipeline.context import Context
from pipeline.frozen_plan import affordable, read_frozen_plan
from pipeline.tokenized import SplitCounts, read_block
from pipeline.toolchain import Toolchain
from pipeline.workloads import load_workload

_ROWS = 256
_SPLITS = 4


def wants_probe(context: Context, toolchain: Toolchain) -> bool:
    """Whether a plan is about to be made from estimates although this host could measure."""
    return (
        not context.job.shapes
        and context.job.compile != "never"
        and toolchain.target.on_cpu
        and load_workload(context.job.task).probes()
        and read_frozen_plan(context, toolchain) is None
    )


def probe(
    context: Context, toolchain: Toolchain, model_dir: Path, tokens_uri: str, splits: Sequence[SplitCounts]
) -> None:
    """Measure, unless it was done before or there is no row to measure with; the costs lie beside the artifacts."""
    if wants_probe(context, toolchain):
        affordable(context, toolchain, toolchain.costs())  # or no plan could be made of what is measured
        workload = load_workload(context.job.task)
        workload.probe(context, toolchain, model_dir, lambda: spread_rows(context, tokens_uri, splits))


def spread_rows(context: Context, tokens_uri: str, splits: Sequence[SplitCounts]) -> list[TokenRow]:
    """Up to _ROWS rows of the first splits, evenly over their lengths."""
    rows: list[TokenRow] = []
    for counts in [split for split in splits if split.accepted][:_SPLITS]:
        block = read_block(context.objects, tokens_uri, counts, 0, counts.accepted)
        rows += [row for row, _ in block.spread(_ROWS // _SPLITS)]
    return rows
