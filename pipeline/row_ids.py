"""What a row is called: where it came from, and its id in the output. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.run_plan import RunPlan
from pipeline.snapshot import Snapshot


def origins(
    plan: RunPlan, snapshot: Snapshot, split: int, pieces: Sequence[int], rows: Sequence[int]
) -> tuple[list[str], list[int]]:
    """Source URI and row number within the object, from the piece of the split and the row within it."""
    offsets = plan.row_offsets[split]
    uris = [snapshot.objects[piece.object].uri for piece in snapshot.splits[split].pieces]
    return [uris[piece] for piece in pieces], [offsets[piece] + row for piece, row in zip(pieces, rows, strict=True)]


def row_ids(given: Sequence[str | None], uris: Sequence[str], rows: Sequence[int]) -> list[str]:
    """The job's id column where it has one, else uri#row."""
    return [f"{uri}#{row}" if own is None else own for own, uri, row in zip(given, uris, rows, strict=True)]
