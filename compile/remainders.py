"""Where the last partial batch of each shape runs: in its own shape, or among the rows of the next longer one."""

from __future__ import annotations

from collections.abc import Sequence

from compile.shapes import ShapePlan


def place_remainders(rows: Sequence[int], plan: ShapePlan) -> tuple[int, ...]:
    """Rows that each shape hands to the next longer one so that all rows take the fewest seconds; the last hands 0.

    `rows` are those whose length goes to each shape. A shape hands on all rows of its last partial batch (its own and
    those handed to it) or none. Of equally cheap ways the one that hands on less is taken. Raises ValueError when
    there is not one number per shape.
    """
    if len(rows) != len(plan.shapes):
        raise ValueError(f"{len(rows)} row counts do not fit a plan of {len(plan.shapes)} shapes")
    # Rows handed to the shape at hand -> (seconds so far, rows handed on by each shape before it).
    states: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for own, shape, cost in zip(rows, plan.shapes, plan.seconds, strict=True):
        following: dict[int, tuple[float, tuple[int, ...]]] = {}
        for handed, (seconds, moves) in states.items():
            full, rest = divmod(own + handed, shape.batch)
            here = seconds + full * cost
            choices = [(0, here + cost if rest else here)]
            if rest and shape is not plan.shapes[-1]:
                choices.append((rest, here))
            for handed_on, total in choices:
                known = following.get(handed_on)
                if known is None or (total, sum(moves)) < (known[0], sum(known[1][:-1])):
                    following[handed_on] = (total, (*moves, handed_on))
        states = following
    return states[0][1]


def executed_batches(rows: Sequence[int], plan: ShapePlan) -> tuple[int, ...]:
    """Batches of each shape when remainders are placed that way, partial ones included."""
    moves = place_remainders(rows, plan)
    handed = (0, *moves[:-1])
    return tuple(
        -(-(own + taken - given) // shape.batch)
        for own, taken, given, shape in zip(rows, handed, moves, plan.shapes, strict=True)
    )
