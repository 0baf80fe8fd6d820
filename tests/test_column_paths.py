"""A dotted name is a column of that name where there is one, else a path into nested objects, in every format."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.column_paths import lookup
from pipeline.errors import JobError
from pipeline.job import Input
from pipeline.objects import ObjectInfo, Objects
from pipeline.rejects import Accepted, Reject, check_row
from pipeline.sources import object_format, source_rows, source_units
from pipeline.splits import Piece

SPEC = Input.model_validate(
    {
        "uri": "in/",
        "template": "{meta.title}: {meta.body.text}",
        "pair": "other.text",
        "id": "meta.key",
        "label": "meta.label",
        "keep": {"lang": {"column": "meta.lang"}, "stars": {"column": "meta.body.stars", "type": "int32"}},
    }
)
ROW = {
    "meta": {"title": "T", "key": 7, "label": "pos", "lang": "de", "body": {"text": "B", "stars": 5}},
    "other": {"text": "P"},
}
GOOD = Accepted("T: B", "P", "7", ("de", 5), "pos")


@pytest.mark.parametrize(
    ("values", "column", "found"),
    [
        ({"a": {"b": 1}}, "a.b", 1),
        ({"a.b": 2, "a": {"b": 1}}, "a.b", 2),
        ({"a.b": None, "a": {"b": 1}}, "a.b", None),
        ({"a": None}, "a.b.c", None),
        ({"a": {"b": None}}, "a.b.c", None),
        ({"a": {"": {"b": 3}}}, "a..b", 3),
        ({"a": {"b.c": 1}}, "a.b.c", KeyError),
        ({"a": {}}, "a.b", KeyError),
        ({}, "a.b", KeyError),
        ({"a": "text"}, "a.b", TypeError),
        ({"a": [{"b": 1}]}, "a.b", TypeError),
        ({"a": {"b": 1}}, "a.b.c", TypeError),
    ],
)
def test_lookup(values: dict[str, Any], column: str, found: Any) -> None:
    if isinstance(found, type):
        with pytest.raises(found):
            lookup(values, column)
    else:
        assert lookup(values, column) == found


def with_value(path: str, value: Any) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(json.dumps(ROW))
    *folders, last = path.split(".")
    inner = row
    for name in folders:
        inner = inner[name]
    inner[last] = value
    return row


@pytest.mark.parametrize(
    ("row", "reason", "message"),
    [
        (with_value("meta", None), "null_text", "column 'meta.title' is null"),
        (with_value("meta", "x"), "wrong_type", "column 'meta.title': 'meta' is str, not an object"),
        (with_value("meta.body", [1]), "wrong_type", "column 'meta.body.text': 'meta.body' is list, not an object"),
        (with_value("other", {}), "missing_column", "no column 'other.text'"),
        (
            with_value("meta.key", None),
            "missing_id",
            "id column 'meta.key' is 'None'; an id is a text or a whole number",
        ),
        (with_value("meta.body.stars", "x"), "bad_kept_value", "column 'meta.body.stars', kept as 'stars'"),
    ],
)
def test_faults_of_nested_columns(row: dict[str, Any], reason: str, message: str) -> None:
    found = check_row(row, SPEC)
    assert isinstance(found, Reject)
    assert found.reason == reason
    assert found.message.startswith(message)


def test_a_kept_column_below_something_that_holds_none_is_refused_not_null() -> None:
    spec = Input.model_validate({"uri": "in/", "text": "t", "id": "i.d", "keep": {"k": {"column": "m.k"}}})
    assert check_row({"t": "x", "i": {"d": "1"}}, spec) == Accepted("x", None, "1", (None,))
    for row, reason in (({"m": "text"}, "bad_kept_value"), ({"i": 3}, "missing_id")):
        found = check_row({"t": "x", "i": {"d": "1"}, **row}, spec)
        assert isinstance(found, Reject)
        assert (found.reason, "not an object" in found.message) == (reason, True)


def read(path: Path, spec: Input) -> list[Any]:
    objects = Objects()
    info = objects.head(str(path))
    name = object_format(info.uri, spec.format)
    units = list(source_units(objects, info, name, 0, spec))
    pieces = [Piece(0, unit.start, unit.stop) for unit in units]
    rows = [row for piece in pieces for row in source_rows(objects, info, name, piece, spec)]
    return [row.fault or check_row(row.values or {}, spec) for row in rows]


def write_stream(path: Path, table: pa.Table) -> None:
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


def test_every_nested_format_finds_the_same_values(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(ROW) + "\n")
    table = pa.Table.from_pylist([ROW])
    pq.write_table(table, tmp_path / "x.parquet")
    write_stream(tmp_path / "x.arrow", table)
    for name in ("x.jsonl", "x.parquet"):
        assert read(tmp_path / name, SPEC) == [GOOD], name
    assert read(tmp_path / "x.arrow", SPEC.model_copy(update={"format": "datasets"})) == [GOOD]


LITERAL = Input.model_validate({"uri": "in/", "text": "a.b", "keep": {"c": {"column": "a.c"}}})


def test_a_column_whose_name_has_a_dot_wins(tmp_path: Path) -> None:
    row = {"a.b": "literal", "a": {"b": "nested", "c": "kept", "d": 1}}
    (tmp_path / "x.jsonl").write_text(json.dumps(row) + "\n")
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text("a.b,a.c\nliteral,kept\n")
    for name in ("x.jsonl", "x.parquet", "x.csv"):
        assert read(tmp_path / name, LITERAL) == [Accepted("literal", None, None, ("kept",))], name


class CountingObjects(Objects):
    """Counts the bytes that are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0

    def get(self, uri: str, start: int = 0, stop: int | None = None, etag: str | None = None, stamp: str = "") -> bytes:
        data = super().get(uri, start, stop, etag, stamp)
        self.read_bytes += len(data)
        return data


def test_of_a_parquet_struct_only_the_named_leaf_is_read(tmp_path: Path) -> None:
    noise = [{"text": f"row {k}", "blob": dt.datetime.now().isoformat() + "x" * 9000} for k in range(2000)]
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"meta": noise}), path, compression="none", use_dictionary=False)
    spec = Input.model_validate({"uri": "in/", "text": "meta.text"})
    objects = CountingObjects()
    info: ObjectInfo = objects.head(str(path))
    rows = list(source_rows(objects, info, "parquet", Piece(0, 0, 2000), spec))
    assert [row.values for row in rows[:2]] == [{"meta.text": "row 0"}, {"meta.text": "row 1"}]
    assert info.size_bytes > 18_000_000
    assert objects.read_bytes < 10_000_000


def test_null_structs_and_paths_that_lead_nowhere(tmp_path: Path) -> None:
    spec = Input.model_validate({"uri": "in/", "text": "meta.text", "keep": {"at": {"column": "meta.at"}}})
    kind = pa.struct([("text", pa.string()), ("at", pa.timestamp("ns"))])
    column = pa.array([{"text": "a", "at": 1_000_000_123_456_789}, None, {"text": None, "at": None}], kind)
    pq.write_table(pa.table({"meta": column}), tmp_path / "x.parquet")
    good, *bad = read(tmp_path / "x.parquet", spec)
    assert good == Accepted("a", None, None, ("1970-01-12T13:46:40.123456",))
    assert [item.reason for item in bad] == ["null_text", "null_text"]
    other = pa.array([[{"text": "a", "at": "b"}]])
    pq.write_table(pa.table({"meta": other}), tmp_path / "y.parquet")
    with pytest.raises(JobError, match=r"y.parquet: no column 'meta.text'; it has: meta$"):
        read(tmp_path / "y.parquet", spec)
    pq.write_table(pa.table([["a"], ["b"]], names=["t", "t"]), tmp_path / "z.parquet")
    with pytest.raises(JobError, match=r"z.parquet: two columns 't'; it has: t, t"):
        read(tmp_path / "z.parquet", Input.model_validate({"uri": "in/", "text": "t"}))
    with pytest.raises(JobError, match=r"x.parquet: no column 'meta.body'; it has: meta.text, meta.at"):
        read(tmp_path / "x.parquet", Input.model_validate({"uri": "in/", "text": "meta.body"}))


def test_nanoseconds_are_cut_wherever_they_lie(tmp_path: Path) -> None:
    """In lists, structs and maps that are kept as JSON; pandas would else decide how they print."""
    spec = Input.model_validate({"uri": "in/", "text": "t", "keep": {"s": "string", "m": "string", "d": "string"}})
    stamp = pa.timestamp("ns")
    columns = {
        "t": ["x"],
        "s": pa.array([{"at": [1]}], pa.struct([("at", pa.list_(stamp))])),
        "m": pa.array([[("k", 1)]], pa.map_(pa.string(), stamp)),
        "d": pa.array([90_000_000_000], pa.duration("ns")),
    }
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    (found,) = read(tmp_path / "x.parquet", spec)
    assert found.kept == ('{"at": ["1970-01-01 00:00:00"]}', '[["k", "1970-01-01 00:00:00"]]', "0:01:30")
