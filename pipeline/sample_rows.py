"""Which rows of the night a shape is proven on: spread over the lengths that it takes, and those with a known label."""

from __future__ import annotations

from collections.abc import Iterator

from compile.accuracy import LabelledRow
from compile.batches import TokenRow
from pipeline.columns import kept_schema
from pipeline.context import Context
from pipeline.layout import token_object
from pipeline.parquet_files import read_table
from pipeline.run_plan import RunPlan
from pipeline.shards import Range
from pipeline.tokenized import load_counts, read_block

_ROWS_PER_RANGE = 32
"""Real rows handed to the parity check per shape."""
_LABELLED_PER_RANGE = 256


def sample_rows(context: Context, plan: RunPlan) -> list[TokenRow]:
    """Real rows of the night for the parity check: spread over the lengths of each shape's first ranges."""
    return [row for _, row, _ in _spread_rows(context, plan, _ROWS_PER_RANGE)]


def labelled_rows(context: Context, plan: RunPlan) -> list[LabelledRow]:
    """Real rows whose true label is known and one of the model's, by name or by index; none for other problem types."""
    if not plan.job.input.label or plan.model.problem_type != "single_label":
        return []
    index = {name: number for number, name in enumerate(plan.model.labels)}
    index |= {str(number): number for number in range(len(plan.model.labels)) if str(number) not in index}
    labels: dict[int, list[str | None]] = {}
    found = []
    for split, row, position in _spread_rows(context, plan, _LABELLED_PER_RANGE):
        if split not in labels:
            kept = read_table(context.objects.get(token_object(plan.tokens_uri, split, "kept.parquet")))
            labels[split] = kept.cast(kept_schema(plan.job))["__label"].to_pylist()
        label = labels[split][position]
        if label in index:
            found.append(LabelledRow(row, index[label]))
    return found


def _spread_rows(context: Context, plan: RunPlan, count: int) -> Iterator[tuple[int, TokenRow, int]]:
    """Up to `count` rows of each shape's first ranges, as (split, row, position in the split)."""
    first: dict[int, Range] = {}
    for shard in plan.shards:
        first.setdefault(shard.shape, max(shard.ranges, key=lambda part: part.stop - part.start))
    for part in first.values():
        counts = load_counts(context.objects, plan.tokens_uri, part.split)
        block = read_block(context.objects, plan.tokens_uri, counts, part.start, part.stop)
        yield from ((part.split, row, position) for row, position in block.spread(count))
