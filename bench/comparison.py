"""The benchmark's answers: what each contestant costs, and the table a person reads."""

from __future__ import annotations

from dataclasses import dataclass

LENGTHWISE = "Lengthwise"
EXPERT = "OpenVINO, dynamic, sorted"
BOUND = "bound"
EXECUTING = "Lengthwise, executing batches"
PIPELINES = {
    "transformers pipeline, defaults": ("transformers fp32", False),
    "transformers pipeline, bf16": ("transformers bf16", False),
    "transformers pipeline, one core": ("transformers fp32", True),
    "transformers pipeline, bf16, one core": ("transformers bf16", True),
}
"""Row of the table -> contestant, and whether it is pinned to one core."""
GOALS = {"transformers pipeline, defaults": 8.0, "transformers pipeline, bf16": 3.5, EXPERT: 1.03}


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of a contestant."""

    start_s: float
    """What a night costs before its first row: imports and loading."""
    loop_s: float
    """The rows: of a run when measured, of a thousand rows in the answers."""


Answers = dict[str, dict[str, Cost]]
"""By set, by contestant."""


def table(answers: Answers) -> str:
    """What a person reads."""
    lines: list[str] = []
    for name, found in answers.items():
        ours = found[LENGTHWISE].loop_s
        lines.append(f"{name:<39} {'start, s':>9} {'s/1,000 rows':>13} {'Lengthwise is':>14}")
        for who, cost in sorted(found.items(), key=lambda item: -item[1].loop_s):
            mark = "" if who in (LENGTHWISE, EXECUTING, BOUND) else f"{cost.loop_s / ours:.2f}x"
            goal = f"  (goal {GOALS[who]}x)" if who in GOALS else ""
            lines.append(f"  {who:<37} {cost.start_s:9.2f} {cost.loop_s:13.3f} {mark:>14}{goal}")
        share, whole = (found[BOUND].loop_s / found[who].loop_s for who in (EXECUTING, LENGTHWISE))
        lines.append(f"  {share:.0%} of the bound while executing (goal 85 %), {whole:.0%} end to end\n")
    return "\n".join(lines)
