"""Whether a job's frozen shape plan still fits: what a re-plan would save on tonight's lengths, net of compiling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compile.planner import Costs, make_plan, padding_efficiency, predicted_seconds
from compile.shapes import ShapePlan


@dataclass(frozen=True, slots=True)
class Drift:
    """A frozen plan and the best plan for tonight's lengths, both at today's costs. Seconds are of one core."""

    frozen_seconds: float
    """Of executing, and of loading each of its graphs once."""
    replanned_seconds: float
    compile_seconds: float
    """Of the shapes that only the new plan has."""
    nights: int
    """Nights over which compiling is to pay off."""
    frozen_efficiency: float
    replanned_efficiency: float
    replanned: ShapePlan

    @property
    def saved_seconds(self) -> float:
        """Per night, net of compiling; below zero when a re-plan does not pay."""
        return self.frozen_seconds - self.replanned_seconds - self.compile_seconds / self.nights

    @property
    def saved_share(self) -> float:
        """`saved_seconds` as a share of the frozen plan's seconds; 0 for a night without rows."""
        return self.saved_seconds / self.frozen_seconds if self.frozen_seconds else 0.0


def measure_drift(
    frozen: ShapePlan,
    replanned: ShapePlan,
    counts: NDArray[np.int64],
    costs: Costs,
    compile_seconds_per_shape: float,
    nights: int = 30,
    load_s: float = 0.0,
) -> Drift:
    """Compare two plans on tonight's histogram; each graph also costs `load_s` a night.

    Raises ValueError when either cannot hold it, or for no nights.
    """
    if nights < 1:
        raise ValueError(f"compiling must pay off over at least one night, not {nights}")
    # The frozen plan keeps the costs it was made with; both are judged by what is known today.
    today = make_plan(frozen.shapes, costs)
    best = make_plan(replanned.shapes, costs)
    return Drift(
        frozen_seconds=predicted_seconds(today, counts) + load_s * len(today.shapes),
        replanned_seconds=predicted_seconds(best, counts) + load_s * len(best.shapes),
        compile_seconds=compile_seconds_per_shape * len(set(best.shapes) - set(today.shapes)),
        nights=nights,
        frozen_efficiency=padding_efficiency(today, counts),
        replanned_efficiency=padding_efficiency(best, counts),
        replanned=best,
    )
