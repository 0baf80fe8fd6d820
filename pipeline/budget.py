"""Whether a run has too many rejects to publish. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal

from pipeline.errors import RejectBudgetError
from pipeline.job import RejectBudget
from pipeline.rejects import REASONS


def check_budget(budget: RejectBudget, rows: int, reasons: Iterable[Mapping[str, int]]) -> None:
    """Raises RejectBudgetError with the table of reasons when either limit is exceeded."""
    total: Counter[str] = Counter()
    for counts in reasons:
        total.update(counts)
    rejected = total.total()
    # In decimals, as the job file wrote it: in floats 0.29 of 100 rows is 28.99 rows.
    allowed = Decimal(str(budget.share)) * rows
    limits = []
    if budget.rows is not None and rejected > budget.rows:
        limits.append(f"reject_budget.rows allows {budget.rows}")
    if rejected > allowed:
        limits.append(f"reject_budget.share allows {budget.share:.2%}, which is {int(allowed)} rows")
    if not limits:
        return
    table = "\n".join(f"  {count:>8,}  {reason:<16} {REASONS[reason]}" for reason, count in total.most_common())
    raise RejectBudgetError(
        f"{rejected:,} of {rows:,} rows were rejected ({rejected / rows:.2%}), more than the job allows "
        f"({'; '.join(limits)}). Nothing was published.\n{table}\n"
        "Mend the input, or raise the budget in the job file if these rows may be missing."
    )
