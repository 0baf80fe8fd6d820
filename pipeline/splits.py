"""How a snapshot is cut into splits: small objects gathered, large ones cut, in the order of their URIs. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MAX_SPLIT_BYTES = 64 << 20
"""Uncompressed bytes of a split, unless the job says otherwise: with its rows, what a step holds at once."""
MAX_SPLIT_ROWS = 100_000
MAX_PIECES = 10_000


@dataclass(frozen=True, slots=True)
class Unit:
    """The smallest thing that may be read by itself: a run of rows, or a range of an object's plain bytes."""

    object: int
    """Index into the snapshot's objects."""
    start: int
    """First row (Parquet), or first byte: of what a compressed object holds, of the object itself otherwise."""
    stop: int
    """One past the last."""
    rows: int
    """At most so many; of plain lines about so many, by a sample."""
    size_bytes: int
    """Uncompressed where known."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A contiguous part of one object within a split; its rows count from 0."""

    object: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Split:
    """The unit of tokenising and of an output part."""

    index: int
    pieces: tuple[Piece, ...]


def byte_units(index: int, size_bytes: int, line_bytes: float, max_bytes: int, max_rows: int) -> Iterator[Unit]:
    """Cut one uncompressed object of lines, `line_bytes` long on average, into ranges that fit into splits.

    A line belongs to the range in which it starts.
    """
    count = max(1, -(-size_bytes // max_bytes), math.ceil(size_bytes / line_bytes / max_rows))
    bounds = [size_bytes * k // count for k in range(count + 1)]
    for start, stop in itertools.pairwise(bounds):
        yield Unit(index, start, stop, math.ceil((stop - start) / line_bytes), stop - start)


def row_units(index: int, first: int, rows: int, size_bytes: int, max_bytes: int, max_rows: int) -> Iterator[Unit]:
    """Cut `rows` rows of about equal size, the first of them number `first` of the object, to fit into splits."""
    count = min(rows, max(-(-rows // max_rows), -(-size_bytes // max_bytes)))
    for start, stop in itertools.pairwise(rows * k // count for k in range(count + 1)) if count else ():
        yield Unit(index, first + start, first + stop, stop - start, size_bytes * (stop - start) // rows)


def gather(units: Iterable[Unit], max_bytes: int, max_rows: int) -> list[Split]:
    """Pack consecutive units into splits; a unit that is too large by itself becomes a split of its own."""
    splits: list[Split] = []
    pieces: list[Piece] = []
    rows = size_bytes = 0
    for unit in units:
        full = size_bytes + unit.size_bytes > max_bytes or rows + unit.rows > max_rows or len(pieces) >= MAX_PIECES
        if pieces and full:
            splits.append(Split(len(splits), tuple(pieces)))
            pieces, rows, size_bytes = [], 0, 0
        last = pieces[-1] if pieces else None
        if last and last.object == unit.object and last.stop == unit.start:
            pieces[-1] = Piece(unit.object, last.start, unit.stop)
        else:
            pieces.append(Piece(unit.object, unit.start, unit.stop))
        rows += unit.rows
        size_bytes += unit.size_bytes
    if pieces:
        splits.append(Split(len(splits), tuple(pieces)))
    return splits
