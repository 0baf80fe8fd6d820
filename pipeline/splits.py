"""How a snapshot is cut into splits: small objects gathered, large ones cut, in the order of their URIs. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MAX_SPLIT_BYTES = 64 << 20
"""Uncompressed bytes of a split, unless the job says otherwise: with its rows, what a step holds at once."""
MAX_SPLIT_ROWS = 100_000
MAX_PIECES = 10_000


@dataclass(frozen=True, slots=True)
class Unit:
    """The smallest thing that may be read by itself: a row group, a byte range of lines, or a whole object."""

    object: int
    """Index into the snapshot's objects."""
    start: int
    """First row group, or first byte."""
    stop: int
    """One past the last."""
    rows: int
    """Exact for row groups, 0 where nobody has counted yet."""
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


def byte_units(index: int, size_bytes: int, max_bytes: int) -> Iterator[Unit]:
    """Cut one uncompressed object of lines into ranges; a line belongs to the range in which it starts."""
    count = max(1, -(-size_bytes // max_bytes))
    bounds = [size_bytes * k // count for k in range(count + 1)]
    for start, stop in itertools.pairwise(bounds):
        yield Unit(index, start, stop, 0, stop - start)


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
