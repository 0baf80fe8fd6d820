"""Per format, what good and bad files give: rows, a fault of one row, or an error that names the file."""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import JobError, StorageError
from pipeline.job import Input
from pipeline.objects import Objects
from pipeline.rejects import Accepted, Reject, check_row
from pipeline.sources import object_format, source_rows, source_units
from pipeline.splits import Piece

TEXT = Input.model_validate({"uri": "in/", "text": "text"})
KEPT = Input.model_validate(
    {"uri": "in/", "text": "text", "id": "id", "keep": {"n": "int64", "s": "string", "at": "timestamp"}}
)


def read(path: Path, spec: Input = TEXT, name: str = "auto") -> list[Any]:
    """Rows of a whole object as the flow reads them: values, or the fault's reason."""
    objects = Objects()
    info = objects.head(str(path))
    found = object_format(info.uri, name)
    units = list(source_units(objects, info, found, 0, spec))
    rows = []
    for unit in units:
        piece = list(source_rows(objects, info, found, Piece(0, unit.start, unit.stop), spec))
        assert [row.row for row in piece] == list(range(len(piece)))
        assert all((row.values is None) != (row.fault is None) for row in piece)
        assert len(piece) <= unit.rows + 1
        rows += [row.fault.reason if row.fault else row.values for row in piece]
    return rows


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def write_parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


COMPRESS = {"": lambda data: data, ".gz": gzip.compress, ".zst": zstandard.compress}


# ---- which format


@pytest.mark.parametrize(
    ("uri", "declared", "found"),
    [
        ("s3://b/x.parquet", "auto", "parquet"), ("x.PQ", "auto", "parquet"), ("x.jsonl", "auto", "jsonl"),
        ("x.ndjson.zst", "auto", "jsonl"), ("x.json.GZ", "auto", "jsonl"), ("x.csv.gz", "auto", "csv"),
        ("x.tsv", "auto", "tsv"), ("x.txt", "auto", "text"), ("x.log", "text", "text"), ("x.csv", "text", "text"),
    ],
)  # fmt: skip
def test_the_format_is_declared_or_told_by_the_extension(uri: str, declared: str, found: str) -> None:
    assert object_format(uri, declared) == found


@pytest.mark.parametrize("uri", ["x.log", "x", "x.parquet.bak", "x.gz"])
def test_an_unknown_extension_is_an_error_that_lists_the_known(uri: str) -> None:
    with pytest.raises(
        JobError, match=rf"^{uri}: no known extension; use one of .parquet, .pq, .jsonl, .* input.format"
    ):
        object_format(uri, "auto")


# ---- JSONL


@pytest.mark.parametrize("extension", COMPRESS)
def test_each_bad_line_is_one_fault(tmp_path: Path, extension: str) -> None:
    lines = [
        (b'{"text": "\xc3\xa9", "n": [1, {"a": null}]}', {"text": "é", "n": [1, {"a": None}]}),
        (b"{", "malformed_json"),
        (b"", None),
        (b'{"text": "a"} trailing', "malformed_json"),
        (b'{"text": "\xff"}', "invalid_utf8"),
        (b'["text"]', "not_an_object"),
        (b"null", "not_an_object"),
        (b"  \t", None),
        (b'{"text": "a\tb"}', "malformed_json"),
        (b'{"text": "\\ud800"}', {"text": "\ud800"}),
        (b'{"text":' + b"[" * 3000, "malformed_json"),
        (b"9" * 5000, "malformed_json"),
        (b'{"text": "last"}\r', {"text": "last"}),
    ]
    data = b"\xef\xbb\xbf" + b"\n".join(line for line, _ in lines)
    path = write(tmp_path / f"x.jsonl{extension}", COMPRESS[extension](data))
    assert read(path) == [expected for _, expected in lines if expected is not None]


def test_a_value_nested_almost_too_deep_to_parse_rejects_its_row_only(tmp_path: Path) -> None:
    spec = Input.model_validate({"uri": "in/", "text": "text", "keep": {"k": "string"}})
    data = b"".join(b'{"text": "t", "k": ' + b"[" * n + b"]" * n + b"}\n" for n in range(900, 1001))
    rows = read(write(tmp_path / "x.jsonl", data), spec)
    assert len(rows) == 101
    for row in rows:
        found = row if isinstance(row, str) else check_row(row, spec)
        if not isinstance(found, str | Accepted):
            assert found.reason == "bad_kept_value"
        if not isinstance(row, str):
            assert isinstance(check_row(row | {"text": None}, spec), Reject)


def test_row_numbers_do_not_depend_on_how_blank_lines_are_cut(tmp_path: Path) -> None:
    """The rows that pieces count add up to the row number in the object, wherever the cut falls."""
    data = b'\n{"text": "a"}\n\n\n{"text": "b"}\n\n{"text": "c"}\n\n'
    objects = Objects()
    info = objects.head(str(write(tmp_path / "x.jsonl", data)))
    for cut in range(len(data) + 1):
        numbers = {}
        offset = 0
        for piece in (Piece(0, 0, cut), Piece(0, cut, len(data))):
            rows = list(source_rows(objects, info, "jsonl", piece, TEXT))
            numbers |= {offset + row.row: row.values["text"] for row in rows if row.values}
            offset += rows[-1].row + 1 if rows else 0  # as tokenize counts the rows of a piece
        assert numbers == {0: "a", 1: "b", 2: "c"}, cut


# ---- damaged compression, of every format that is read as a stream


@pytest.mark.parametrize("name", ["x.jsonl", "x.txt", "x.csv"])
@pytest.mark.parametrize("extension", [".gz", ".zst"])
def test_a_compressed_file_that_is_cut_short_or_damaged_is_an_error(tmp_path: Path, name: str, extension: str) -> None:
    rng = random.Random(0)
    plain = b"text\n" + b"".join(b'{"text": "%d"}\n' % rng.randrange(10**9) for _ in range(20_000))
    whole = COMPRESS[extension](plain)
    for size in (1, 3, 17, len(whole) // 2, len(whole) - 1):
        with pytest.raises(JobError, match=rf"{name}{extension}: damaged or cut short"):
            read(write(tmp_path / f"{name}{extension}", whole[:size]))
    with pytest.raises(JobError, match="damaged or cut short"):
        read(write(tmp_path / f"{name}{extension}", b"not compressed at all"))
    with pytest.raises(JobError, match="damaged or cut short"):
        read(write(tmp_path / f"{name}{extension}", whole + b"garbage at the end"))


@pytest.mark.parametrize("extension", [".gz", ".zst"])
def test_compressed_files_may_hold_several_parts(tmp_path: Path, extension: str) -> None:
    compress = COMPRESS[extension]
    data = compress(b'{"text": "a"}\n{"te') + compress(b"") + compress(b'xt": "b"}\n')
    assert read(write(tmp_path / f"x.jsonl{extension}", data)) == [{"text": "a"}, {"text": "b"}]


@given(st.lists(st.binary(max_size=300), max_size=4), st.integers(0, 10**6))
def test_zstd_frames_read_as_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], seed: int
) -> None:
    big = random.Random(seed).randbytes(seed % 20_000) + b"\0" * (seed % 400_000)
    plain = [*parts, big.replace(b"\n", b"")]
    data = b"".join(map(zstandard.compress, plain))
    path = write(tmp_path_factory.mktemp("zstd") / "x.txt.zst", data)
    rows = read(path)
    assert len(rows) == len(io.BytesIO(b"".join(plain)).readlines())


# ---- text


def test_text_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "x.txt", b"\xef\xbb\xbfone\r\n\n\xff\n two ")
    assert read(path) == [{"text": "one"}, {"text": ""}, "invalid_utf8", {"text": " two "}]


@pytest.mark.parametrize(
    "change",
    [{"text": "body"}, {"pair": "p"}, {"id": "i"}, {"keep": {"a": "string"}}],
    ids=lambda item: next(iter(item)),
)
def test_text_files_have_one_column(tmp_path: Path, change: dict[str, Any]) -> None:
    spec = Input.model_validate({"uri": "in/", "text": "text", **change})
    with pytest.raises(JobError, match="a text file has one column, text"):
        read(write(tmp_path / "x.txt", b"a\n"), spec)


# ---- CSV


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"text,n\na,1\nb,2\n", [{"text": "a", "n": "1"}, {"text": "b", "n": "2"}]),
        (b"\xef\xbb\xbftext\r\na\r\n", [{"text": "a"}]),
        (b'text,n\n"a,\n""b""\n",1\n', [{"text": 'a,\n"b"\n', "n": "1"}]),
        (b"text,n\n\n\na,1", [{"text": "a", "n": "1"}]),
        (b"text,n\na\na,1,2\nok,1\n", ["malformed_csv", "malformed_csv", {"text": "ok", "n": "1"}]),
        (b'text,n\n"a"b,1\nok,1\n', ["malformed_csv", {"text": "ok", "n": "1"}]),
        (b'text,n\n"a,1\nb,2\n', ["malformed_csv", "malformed_csv"]),
        # A stray quote that a later one closes: every line in between is a reject, none is lost.
        (b'text,n\n"a,1\nb,2\nc,3\nd",4,5\nok,1\n', ["malformed_csv"] * 4 + [{"text": "ok", "n": "1"}]),
        (b"text\ncaf\xe9\n", [{"text": "caf\udce9"}]),
        (b'text\n""\n" "\n', [{"text": ""}, {"text": " "}]),
        ("text\na\u2028b\x85c\n".encode(), [{"text": "a\u2028b\x85c"}]),
        (b"text\na\0b\n", [{"text": "a\0b"}]),
        (b"text\n", []),
    ],
)
def test_csv_records(tmp_path: Path, data: bytes, rows: list[Any]) -> None:
    assert read(write(tmp_path / "x.csv", data)) == rows
    assert read(write(tmp_path / "x.csv.gz", gzip.compress(data))) == rows


def test_an_invalid_byte_in_csv_rejects_its_row_only(tmp_path: Path) -> None:
    rows = read(write(tmp_path / "x.csv", b"text\ncaf\xe9\n\xed\xa0\x80\nok\n"))
    found = [check_row(row, TEXT) for row in rows]
    assert [item.reason if isinstance(item, Reject) else item.text for item in found] == ["invalid_utf8"] * 2 + ["ok"]


def test_tsv(tmp_path: Path) -> None:
    assert read(write(tmp_path / "x.tsv", b'text\tn\na,b\t1\n"c\td"\t\n')) == [
        {"text": "a,b", "n": "1"},
        {"text": "c\td", "n": ""},
    ]


def test_an_empty_csv_field_is_null_where_the_column_is_kept_as_another_type_than_text(tmp_path: Path) -> None:
    (row,) = read(write(tmp_path / "x.csv", b"text,id,n,s,at\n,7,,,\n"), KEPT)
    assert row == {"text": "", "id": "7", "n": None, "s": "", "at": None}
    assert check_row(row, KEPT) == Accepted("", None, "7", (None, "", None))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"body,id\na,b\n", "no column 'text'; its header is: body, id"),
        (b"text,a,text\n", "two columns 'text'; its header is: text, a, text"),
        (b"\n\n", "no column 'text'; its header is: "),
        (b"caf\xe9\n", r"its header is: caf\\udce9"),
    ],
)
def test_a_csv_header_that_does_not_fit_the_job(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(JobError, match=message) as raised:
        read(write(tmp_path / "x.csv", data))
    str(raised.value).encode()


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.integers()), max_size=8))
def test_csv_from_pythons_writer_reads_back(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[str, int]]
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("text", "n"), *records])
    path = write(tmp_path_factory.mktemp("csv") / "x.csv", text.getvalue().encode())
    assert read(path) == [{"text": item, "n": str(number)} for item, number in records]


def test_an_empty_csv_id_is_no_id(tmp_path: Path) -> None:
    (row,) = read(write(tmp_path / "x.csv", b"text,id,n,s,at\nt,,1,s,\n"), KEPT)
    found = check_row(row, KEPT)
    assert isinstance(found, Reject)
    assert found.reason == "missing_id"


# ---- Parquet


def test_parquet_reads_only_the_named_columns_of_each_row_group(tmp_path: Path) -> None:
    columns = {"text": [f"row {k}" for k in range(5)], "other": [1] * 5}
    path = write_parquet(tmp_path / "x.parquet", columns, row_group_size=2)
    objects = Objects()
    units = list(source_units(objects, objects.head(str(path)), "parquet", 4, TEXT))
    assert [(unit.object, unit.start, unit.stop, unit.rows) for unit in units] == [
        (4, 0, 2, 2),
        (4, 2, 4, 2),
        (4, 4, 5, 1),
    ]
    assert read(path) == [{"text": f"row {k}"} for k in range(5)]
    assert read(write_parquet(tmp_path / "empty.parquet", {"text": pa.array([], pa.string())})) == []


TYPES: list[tuple[pa.Array, Any]] = [
    (pa.array(["a", None]), "a"),
    (pa.array(["a", None], pa.large_string()), "a"),
    (pa.array(["a", None]).dictionary_encode(), "a"),
    (pa.array([b"a", None], pa.binary()), "wrong_type"),
    (pa.array([1, None]), "wrong_type"),
    (pa.array([["a"], None]), "wrong_type"),
    (pa.array([None, None], pa.null()), "null_text"),
]


@pytest.mark.parametrize(("column", "expected"), TYPES, ids=[str(column.type) for column, _ in TYPES])
def test_a_text_column_of_any_type_is_text_or_rejected_row_by_row(
    tmp_path: Path, column: pa.Array, expected: str
) -> None:
    """Files of one night may differ in a column's type: each is read as it is."""
    rows = read(write_parquet(tmp_path / "x.parquet", {"text": column}))
    found = [check_row(row, TEXT) for row in rows]
    assert [item.reason if isinstance(item, Reject) else item.text for item in found] == [expected, "null_text"]


def test_kept_columns_of_parquet_types(tmp_path: Path) -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 6)
    columns = {
        "text": pa.array(["t"] * 4),
        "id": pa.array([1, 2, 3, 4], pa.uint64()),
        "n": pa.array([2**63 - 1, 0, 1, None], pa.decimal128(20)),
        "s": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("2.00"), decimal.Decimal("0.10")]),
        "at": pa.array([moment, None, moment, moment], pa.timestamp("ns", "UTC")),
    }
    rows = read(write_parquet(tmp_path / "x.parquet", columns), KEPT)
    found = [check_row(row, KEPT) for row in rows]
    assert found[0] == Accepted("t", None, "1", (2**63 - 1, "1.50", moment))
    assert found[3] == Accepted("t", None, "4", (None, "0.10", moment))


def test_nanoseconds_are_cut_to_microseconds(tmp_path: Path) -> None:
    spec = Input.model_validate({"uri": "in/", "text": "text", "keep": {"at": "timestamp"}})
    columns = {"text": ["t"], "at": pa.array([1_000_000_123_456_789], pa.timestamp("ns"))}
    (row,) = read(write_parquet(tmp_path / "x.parquet", columns), spec)
    assert type(row["at"]) is dt.datetime
    assert row["at"] == dt.datetime(1970, 1, 12, 13, 46, 40, 123456)


def test_a_value_that_has_no_python_form_is_a_fault_of_its_row_only(tmp_path: Path) -> None:
    texts = [b"row %d" % k for k in range(3000)]
    texts[1] = texts[2000] = b"caf\xe9"
    moments = [0] * 3000
    moments[7] = 2**60
    columns = {"text": pa.array(texts, pa.binary()).view(pa.string()), "at": pa.array(moments, pa.timestamp("us"))}
    spec = Input.model_validate({"uri": "in/", "text": "text", "keep": {"at": "timestamp"}})
    path = tmp_path / "x.parquet"
    write_parquet(path, columns)
    rows = read(path, spec)
    faults = {index: row for index, row in enumerate(rows) if isinstance(row, str)}
    assert faults == {1: "invalid_utf8", 7: "bad_kept_value", 2000: "invalid_utf8"}
    assert rows[2999] == {"text": "row 2999", "at": dt.datetime(1970, 1, 1)}


def test_a_missing_column_is_a_mistake_in_the_job(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", {"text": ["a"], "id": [1], "n": [1]})
    with pytest.raises(JobError, match=r"x.parquet: no column 's'; it has: text, id, n"):
        read(path, KEPT)


def test_damaged_parquet_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """Seeded damage anywhere: the file reads, or it is a JobError; never another exception."""
    path = write_parquet(tmp_path / "x.parquet", {"text": [f"row {k} " * 5 for k in range(2000)]}, row_group_size=500)
    whole = path.read_bytes()
    rng = random.Random(1)
    refused = 0
    for attempt in range(150):
        data = bytearray(whole if attempt % 3 else whole[: rng.randrange(4, len(whole))])
        for _ in range(3):
            data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        path.write_bytes(data)
        try:
            read(path)
        except JobError as error:
            assert str(error).startswith(f"{path}: not a readable Parquet file"), error  # noqa: PT017 - some read well
            refused += 1
    assert refused > 75
    with pytest.raises(JobError, match="not a readable Parquet file"):
        read(write(path, b"plain text"))


# ---- all formats


@pytest.mark.parametrize("extension", ["parquet", "jsonl", "jsonl.gz", "jsonl.zst", "csv", "txt"])
def test_an_object_that_changed_since_it_was_pinned_is_a_storage_error(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"x.{extension}"
    lines = b"".join(json.dumps({"text": "x" * 90}).encode() + b"\n" for _ in range(9))
    if extension == "parquet":
        write_parquet(path, {"text": ["a"]})
    else:
        write(path, COMPRESS.get("." + extension.partition(".")[2], COMPRESS[""])(b"text\n" + lines))
    objects = Objects()
    info = objects.head(str(path))
    name = object_format(str(path), "auto")
    (unit,) = source_units(objects, info, name, 0, TEXT)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(StorageError, match="changed since the run pinned it"):
        list(source_rows(objects, info, name, Piece(0, unit.start, unit.stop), TEXT))


@pytest.mark.parametrize("extension", ["parquet", "jsonl.gz", "jsonl.zst", "csv", "txt"])
def test_an_object_that_is_gone_is_not_called_damaged(tmp_path: Path, extension: str) -> None:
    path = write_parquet(tmp_path / f"x.{extension}", {"text": ["a"]})
    objects = Objects()
    info = objects.head(str(path))
    path.unlink()
    with pytest.raises(StorageError, match="is gone since the run pinned it"):
        list(source_rows(objects, info, object_format(str(path), "auto"), Piece(0, 0, 1), TEXT))
