"""Objects of any size and format are cut into bounded units, and the cuts lose, double and change no row."""

from __future__ import annotations

import csv
import gzip
import io
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import JobError, StorageError
from pipeline.job import Input
from pipeline.objects import Objects
from pipeline.sources import csv_records, lines, object_format, physical_lines, source_rows, source_units
from pipeline.splits import MAX_SPLIT_BYTES, MAX_SPLIT_ROWS, Piece, Unit, row_units

TEXT = Input.model_validate({"uri": "in/", "text": "text"})
COMPRESS = {"": lambda data: data, ".gz": gzip.compress, ".zst": zstandard.compress}


def units_of(path: Path, spec: Input = TEXT) -> list[Unit]:
    objects = Objects()
    info = objects.head(str(path))
    return list(source_units(objects, info, object_format(info.uri, "auto"), 0, spec))


def rows_of(path: Path, units: list[Unit]) -> list[Any]:
    """Values or (reason, message, payload) of every row, unit by unit."""
    objects = Objects()
    info = objects.head(str(path))
    found = []
    for unit in units:
        rows = list(source_rows(objects, info, object_format(info.uri, "auto"), Piece(0, unit.start, unit.stop), TEXT))
        assert [row.row for row in rows] == list(range(len(rows)))
        assert unit.rows == 0 or len(rows) <= unit.rows or path.suffix in (".txt", ".jsonl"), "estimated there"
        found += [row.values or (row.fault and (row.fault.reason, row.fault.payload)) for row in rows]
    return found


def limited(size_bytes: int, rows: int = 10**9) -> Any:
    """The specification with other limits; a job counts them in whole MiB."""

    class Limited(Input):
        @property
        def split_bytes(self) -> int:
            return size_bytes

    return Limited.model_validate({"uri": "in/", "text": "text", "split_rows": rows})


NASTY = [
    "a,1\n", '"quoted\nnewline",2\r\n', '"two ""quotes""\n\n",3\n', "\n", "\r\n", "lone,cr\r", "short\n", "a,b,c\n",
    '"stray,4\n', '"a"b,5\n', "caf\udce9,6\n", "\0,7\n", "é\u2028,8\n", '"","\r\n"\r\n', "x" * 50 + ",9\n",
]  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(NASTY), max_size=25), st.integers(1, 60), st.sampled_from(["", ".gz"]))
def test_csv_reads_alike_however_it_is_cut(tmp_path: Path, parts: list[str], size_bytes: int, compression: str) -> None:
    data = ("\ufefftext,n\r\n" + "".join(parts)).encode("utf-8", errors="surrogateescape")
    path = tmp_path / f"x.csv{compression}"
    path.write_bytes(COMPRESS[compression](data))
    units = units_of(path, limited(size_bytes))
    assert len(units) >= min(2, len(data) // (size_bytes + 80))
    assert [unit.start for unit in units[1:]] == [unit.stop for unit in units[:-1]]
    assert rows_of(path, units) == rows_of(path, [Unit(0, 0, len(data), 0, 0)])


def test_csv_is_cut_by_rows_and_by_bytes_between_records(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("text\n" + '"a\nb"\n' * 100)
    assert [unit.rows for unit in units_of(path, limited(10**9, 20))] == [20] * 10, "lines: a record has two"
    units = units_of(path, limited(60))
    assert [unit.stop - unit.start for unit in units] == [65] + [60] * 9
    assert rows_of(path, units) == [{"text": "a\nb"}] * 100


@pytest.mark.parametrize("extension", ["txt.gz", "jsonl.gz", "txt.zst", "jsonl.zst"])
def test_compressed_lines_are_cut_and_read_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extension: str
) -> None:
    rng = random.Random(3)
    plain = b"\xef\xbb\xbf" + b"".join(
        b'{"text": "%s"}%s' % (rng.randbytes(rng.randrange(200)).hex().encode(), rng.choice([b"\n", b"\r\n", b"\n\n"]))
        for _ in range(1500)
    )
    compress = COMPRESS["." + extension.partition(".")[2]]
    path = tmp_path / f"x.{extension}"
    path.write_bytes(compress(plain[:70_000]) + compress(plain[70_000:]))  # two gzip members or zstd frames
    whole = rows_of(path, [Unit(0, 0, len(plain), 0, 0)])
    monkeypatch.setattr(lines, "_BLOCK_BYTES", 1000)
    for size_bytes, rows in ((1000, 10**9), (50_000, 10**9), (10**9, 100)):
        units = units_of(path, limited(size_bytes, rows))
        assert len(units) > 5 or size_bytes == 50_000
        assert all(unit.stop - unit.start <= size_bytes + 1000 for unit in units)
        assert units[-1].stop == len(plain)
        assert rows_of(path, units) == whole


def test_a_compressed_object_that_unpacks_to_much_takes_little_memory(tmp_path: Path) -> None:
    """96 MiB of lines in 100 kB: more than one split, and never more than a block of it in memory."""
    path = tmp_path / "x.txt.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(96):
            file.write((b"y" * 511 + b"\n") * 2048)
    tracemalloc.start()
    units = units_of(path)
    last = Piece(0, units[-1].start, units[-1].stop)
    objects = Objects()
    row = next(iter(source_rows(objects, objects.head(str(path)), "text", last, TEXT)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert row.values == {"text": "y" * 511}
    assert sum(unit.rows for unit in units) >= 96 * 2048
    assert all(unit.rows <= MAX_SPLIT_ROWS + 130 and unit.size_bytes <= MAX_SPLIT_BYTES + 65_536 for unit in units)
    assert peak < 24 << 20


@pytest.mark.parametrize("size_bytes", [1, 1000, 200_000])
def test_plain_lines_are_cut_by_an_estimate_of_their_rows(tmp_path: Path, size_bytes: int) -> None:
    """Short lines make more rows of a byte range than a split may have."""
    path = tmp_path / "x.txt"
    path.write_bytes((b"ab\n" * size_bytes)[:size_bytes])
    units = units_of(path, limited(MAX_SPLIT_BYTES, 10_000))
    assert sum(unit.rows for unit in units) == pytest.approx(size_bytes / 3, abs=len(units), rel=0.01)
    assert all(unit.rows <= 10_001 for unit in units)
    assert rows_of(path, units) == rows_of(path, [Unit(0, 0, size_bytes, 0, 0)])


def test_a_stray_quote_is_bounded_and_loses_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never closed, it would swallow the rest of the file: after a number of lines, reading begins afresh."""
    monkeypatch.setattr(csv_records, "MAX_RECORD_LINES", 10)
    path = tmp_path / "x.csv"
    path.write_text('text,n\ngood,0\n"stray,1\n' + "".join(f"line {k},{k}\n" for k in range(30)))
    rows = rows_of(path, units_of(path))
    assert rows[0] == {"text": "good", "n": "0"}
    assert rows[1:12] == [("line_too_long", '"stray,1'), *(("line_too_long", f"line {k},{k}") for k in range(10))]
    assert rows[12:] == [{"text": f"line {k}", "n": str(k)} for k in range(10, 30)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_csv_lines_at_the_length_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    for module in (physical_lines, csv_records):
        monkeypatch.setattr(module, "MAX_LINE_BYTES", 20)
    path = tmp_path / "x.csv"
    fields = [b"x" * (20 - len(end)), b"y" * 21, b"ok", b"z" * 500, b"ok", b"w" * 300]
    path.write_bytes(b"text" + end + end.join(fields))
    for block in (1, 7, 64, 1000):
        monkeypatch.setattr(physical_lines, "_BLOCK_BYTES", block)
        rows = rows_of(path, units_of(path))
        assert [row["text"] if isinstance(row, dict) else row[0] for row in rows] == [
            fields[0].decode(), "line_too_long", "ok", "line_too_long", "ok", "line_too_long",
        ], block  # fmt: skip


@given(st.binary(max_size=60).map(lambda data: data.translate(bytes(b"ab\r\n"[k % 4] for k in range(256)))))
def test_physical_lines_are_those_of_the_whole(data: bytes) -> None:
    for block in (1, 2, 5):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(physical_lines, "_BLOCK_BYTES", block)
            found = list(physical_lines.physical_lines(io.BytesIO(data), 0))
        assert [line for _, line in found] == data.splitlines(keepends=True)
        assert [size for size, _ in found] == [len(line) for line in data.splitlines(keepends=True)]


def test_a_csv_header_that_is_no_record_is_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('"te"xt,n\na,1\n')
    with pytest.raises(JobError, match=r"x.csv: its header is no CSV record"):
        units_of(path)


def test_csv_is_parsed_as_python_does(tmp_path: Path) -> None:
    rng = random.Random(5)
    records = [["".join(rng.choices('ab",\n\r é', k=rng.randrange(9))), str(k)] for k in range(2000)]
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["text", "n"], *records])
    path = tmp_path / "x.csv"
    path.write_bytes(text.getvalue().encode())
    assert rows_of(path, units_of(path)) == [{"text": text, "n": number} for text, number in records]


# ---- Parquet


def test_a_large_row_group_is_cut_into_runs_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    groups = [5000, 3, 2500]
    texts = [f"row {k}" for k in range(sum(groups))]
    schema = pa.schema([("text", pa.string()), ("image", pa.binary())])
    with pq.ParquetWriter(path, schema) as writer:
        done = 0
        for rows in groups:
            writer.write_table(
                pa.table({"text": texts[done : done + rows], "image": [b"x" * 99] * rows}, schema=schema)
            )
            done += rows
    units = units_of(path, limited(MAX_SPLIT_BYTES, 1100))
    assert [unit.rows for unit in units] == [1000] * 5 + [3] + [833, 833, 834]
    assert sum(unit.size_bytes for unit in units) < 200_000, "only what is read counts"
    assert rows_of(path, units) == [{"text": text} for text in texts]
    spans = [Unit(0, start, min(start + 1700, len(texts)), 0, 0) for start in range(0, len(texts), 1700)]
    assert rows_of(path, spans) == [{"text": text} for text in texts], "a piece may span row groups"


@given(st.integers(0, 10**7), st.integers(0, 10**10), st.integers(0, 100))
def test_row_units_cover_the_rows_once_within_the_limits(rows: int, size_bytes: int, first: int) -> None:
    units = list(row_units(2, first, rows, size_bytes, MAX_SPLIT_BYTES, MAX_SPLIT_ROWS))
    bounds = [first, *(unit.stop for unit in units)]
    assert [unit.start for unit in units] == bounds[:-1]
    assert bounds[-1] == first + rows
    for unit in units:
        assert 0 < unit.rows == unit.stop - unit.start <= MAX_SPLIT_ROWS
        assert unit.size_bytes <= MAX_SPLIT_BYTES + size_bytes // rows


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "x.txt.gz", "x.jsonl.zst"])
def test_an_object_that_changes_after_it_was_cut_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    compress = COMPRESS["." + name.rpartition(".")[2]] if name.count(".") > 1 else COMPRESS[""]
    path = tmp_path / name
    path.write_bytes(compress(b"text\n" + b"aaaa\n" * 1000))
    monkeypatch.setattr(lines, "_BLOCK_BYTES", 1000)
    objects = Objects()
    info = objects.head(str(path))
    found = object_format(info.uri, "auto")
    units = list(source_units(objects, info, found, 0, limited(1000)))
    path.write_bytes(compress(b"text\n" + b"bbbb\n" * 1000))
    for unit in units:
        with pytest.raises(StorageError, match="changed since the run pinned it"):
            list(source_rows(objects, info, found, Piece(0, unit.start, unit.stop), TEXT))
