"""Every unit lands in exactly one split, in order and within the limits; every line in exactly one byte range."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.job import Input
from pipeline.objects import Objects
from pipeline.sources import physical_lines, source_rows
from pipeline.splits import MAX_PIECES, MAX_SPLIT_ROWS, Piece, Split, Unit, byte_units, gather

SPEC = Input.model_validate({"uri": "in/", "text": "text"})


@st.composite
def units_of_objects(draw: st.DrawFn) -> list[Unit]:
    """Objects of several units each, as sources give them: ascending and without gaps within an object."""
    units = []
    for index, sizes in enumerate(draw(st.lists(st.lists(st.integers(0, 60), max_size=6), max_size=8))):
        for number, size in enumerate(sizes):
            units.append(Unit(index, number, number + 1, draw(st.integers(0, 60)), size))
    return units


@given(units_of_objects(), st.integers(1, 100), st.integers(1, 100))
def test_gather_keeps_every_unit_once_in_order_and_within_limits(
    units: list[Unit], max_bytes: int, max_rows: int
) -> None:
    splits = gather(units, max_bytes, max_rows)
    assert [split.index for split in splits] == list(range(len(splits)))
    by_split = [
        [(piece.object, k) for piece in split.pieces for k in range(piece.start, piece.stop)] for split in splits
    ]
    assert [key for keys in by_split for key in keys] == [(unit.object, unit.start) for unit in units]
    known = {(unit.object, unit.start): unit for unit in units}
    totals = [
        (sum(known[key].size_bytes for key in keys), sum(known[key].rows for key in keys), len(keys))
        for keys in by_split
    ]
    for size, rows, count in totals:
        assert count == 1 or (size <= max_bytes and rows <= max_rows)
    for (size, rows, _), following in zip(totals, by_split[1:], strict=False):
        first = known[following[0]]
        assert size + first.size_bytes > max_bytes or rows + first.rows > max_rows


def test_neighbouring_units_of_an_object_become_one_piece() -> None:
    units = [Unit(0, 0, 1, 5, 10), Unit(0, 1, 2, 5, 10), Unit(1, 0, 1, 5, 10), Unit(1, 1, 2, 5, 10)]
    assert gather(units, 30, 100) == [Split(0, (Piece(0, 0, 2), Piece(1, 0, 1))), Split(1, (Piece(1, 1, 2),))]


def test_many_tiny_objects_are_cut_by_their_number() -> None:
    splits = gather([Unit(index, 0, 1, 0, 1) for index in range(MAX_PIECES + 1)], 1 << 20, 100)
    assert [len(split.pieces) for split in splits] == [MAX_PIECES, 1]


@given(st.integers(0, 10_000), st.floats(1e-3, 1e3), st.integers(1, 500))
def test_byte_units_cover_the_object_once(size: int, line_bytes: float, max_bytes: int) -> None:
    units = list(byte_units(3, size, line_bytes, max_bytes, MAX_SPLIT_ROWS))
    assert all(unit.rows <= MAX_SPLIT_ROWS + 1 / line_bytes + 1 for unit in units)
    assert [byte for unit in units for byte in range(unit.start, unit.stop)] == list(range(size))
    assert all(unit.object == 3 and unit.stop - unit.start == unit.size_bytes <= max_bytes for unit in units)


FILES = {
    "final newline": b"one\ntwo\nthree\n",
    "no final newline": b"one\ntwo\nthree",
    "crlf": b"one\r\ntwo\r\n\r\nthree",
    "empty lines": b"\n\none\n\n\ntwo\n\n",
    "only newlines": b"\n\n\n",
    "one byte": b"x",
    "byte order mark": b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n",
    "a bare carriage return is part of a line": b"a\rb\nc\r\n",
    "line separators of Unicode are part of a line": "a\u2028b\x85c\x0bd\ne\n".encode(),
    "a long line": b"short\n" + b"y" * 60 + b"\nshort\n",
}


def expected_texts(data: bytes) -> list[str]:
    """By splitting the whole at newlines: the definition that cutting must not change."""
    parts = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [part.removesuffix(b"\r").decode() for part in (parts[:-1] if parts[-1] == b"" else parts)]


def read_ranges(path: Path, bounds: list[int]) -> list[str]:
    """The file's rows, read range by range; also checks that each range counts its own rows from 0."""
    objects = Objects()
    info = objects.head(str(path))
    found = []
    for start, stop in itertools.pairwise(bounds):
        rows = list(source_rows(objects, info, "text", Piece(0, start, stop), SPEC))
        assert [row.row for row in rows] == list(range(len(rows)))
        found += [row.values["text"] for row in rows if row.values is not None]
    return found


@pytest.mark.parametrize("name", FILES)
def test_a_cut_at_any_byte_loses_and_doubles_no_line(tmp_path: Path, name: str) -> None:
    data = FILES[name]
    path = tmp_path / "lines.txt"
    path.write_bytes(data)
    for cut in range(len(data) + 1):
        assert read_ranges(path, [0, cut, len(data)]) == expected_texts(data), cut
    assert read_ranges(path, list(range(len(data) + 1))) == expected_texts(data), "every byte a range of its own"


@given(
    st.lists(st.sampled_from([b"a", b"bb" * 9, b"\r", b"\n", b"\n\n", b"\r\n", "é".encode()]), max_size=30),
    st.lists(st.integers(0, 200), max_size=6),
)
def test_any_cuts_of_any_lines_give_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(parts)
    path = tmp_path_factory.mktemp("cuts") / "lines.txt"
    path.write_bytes(data)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert read_ranges(path, bounds) == (expected_texts(data) if data else [])


def test_lines_at_the_length_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded reads find the end of a line that is as long as allowed, one byte longer, and far too long."""
    monkeypatch.setattr(physical_lines, "MAX_LINE_BYTES", 10)
    for end in (b"\n", b"\r\n"):
        data = end.join([b"x" * 10, b"y" * 11, b"ok", b"z" * 35, b"", b"last"])
        path = tmp_path / "lines.txt"
        path.write_bytes(data)
        objects = Objects()
        info = objects.head(str(path))
        for cut in range(len(data) + 1):
            pieces = [Piece(0, 0, cut), Piece(0, cut, len(data))]
            rows = [row for piece in pieces for row in source_rows(objects, info, "text", piece, SPEC)]
            found = [row.values["text"] if row.values else row.fault and row.fault.reason for row in rows]
            assert found == ["x" * 10, "line_too_long", "ok", "line_too_long", "", "last"], (end, cut)
