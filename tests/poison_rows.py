"""The poison corpus: rows with one fault each, in every input format, between good rows that must not suffer."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from jobs import texts

INPUT: dict[str, Any] = {
    "text": "text",
    "id": "id",
    "keep": {
        "group": "string", "n": "int32", "price": "double", "day": "date", "at": "timestamp", "flag": "bool",
        "title": {"column": "meta.title", "type": "string"},
    },
}  # fmt: skip
"""What a job says of the corpus; truncation must be `reject` and max_length 128."""
MIB = 1 << 20
LONG = "word " * 400
"""More than 128 tokens."""
TEXTS = texts(40, longest=6)


@dataclass(slots=True)
class Object:
    """One input object, and what must become of its rows, by source row."""

    data: bytes | pa.Table
    rejects: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Source row -> reason, and a part of the payload."""
    good: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Source row -> the row as JSON has it."""


def good_row(name: str, number: int) -> dict[str, Any]:
    return {
        "id": f"{name}-{number}",
        "text": TEXTS[number % len(TEXTS)],
        "group": "ab"[number % 2],
        "n": number,
        "price": number / 4,
        "day": f"2026-11-{1 + number % 28:02}",
        "at": f"2026-11-01T00:{number % 60:02}:00.000001",
        "flag": number % 3 == 0,
        "meta": {"title": f"title {number}"},
    }


# ---- JSONL: a change of a good row, or a line as it stands

Change = dict[str, Any]
GONE = object()
NAN = float("nan")

JSON_CHANGES: list[tuple[Change, str | None]] = [
    ({"text": ""}, None),
    ({"text": " \n\t "}, None),
    ({"text": "nul \0 inside"}, None),
    ({"text": "emoji \U0001f600 and \u202eright to left\u202c"}, None),
    ({"text": "\ufeffmark, \u2028 line and \x85 next line"}, None),
    ({"id": 12345, "n": None, "price": None, "day": None, "at": None, "flag": None, "group": None}, None),
    ({"group": GONE, "meta": GONE}, None),
    ({"meta": None}, None),
    ({"meta": {"title": 5}}, None),
    ({"n": "7", "price": "1e3", "flag": "TRUE", "group": {"b": 1, "a": [2]}}, None),
    ({"text": None}, "null_text"),
    ({"text": GONE}, "missing_column"),
    ({"text": 5}, "wrong_type"),
    ({"text": 5.5}, "wrong_type"),
    ({"text": True}, "wrong_type"),
    ({"text": ["a"]}, "wrong_type"),
    ({"text": {"a": "b"}}, "wrong_type"),
    ({"text": NAN}, "wrong_type"),
    ({"text": "half \ud800 pair"}, "lone_surrogate"),
    ({"text": "\udc00\ud800 the wrong way round"}, "lone_surrogate"),
    ({"text": "\udcff looks like an escaped byte"}, "invalid_utf8"),
    ({"text": LONG}, "too_long"),
    ({"id": GONE}, "missing_column"),
    ({"id": None}, "missing_id"),
    ({"id": True}, "missing_id"),
    ({"id": 1.5}, "missing_id"),
    ({"id": [1]}, "missing_id"),
    ({"id": {"a": 1}}, "missing_id"),
    ({"id": "\ud800"}, "lone_surrogate"),
    ({"group": "\ud800"}, "bad_kept_value"),
    ({"meta": {"title": "\udfff"}}, "bad_kept_value"),
    ({"meta": "no object"}, "bad_kept_value"),
    ({"meta": [{"title": "a"}]}, "bad_kept_value"),
    ({"n": "x"}, "bad_kept_value"),
    ({"n": ""}, "bad_kept_value"),
    ({"n": 1.5}, "bad_kept_value"),
    ({"n": 2**31}, "bad_kept_value"),
    ({"n": [1]}, "bad_kept_value"),
    ({"n": "1_000"}, "bad_kept_value"),
    ({"n": "\u0661"}, "bad_kept_value"),
    ({"n": NAN}, "bad_kept_value"),
    ({"n": float("inf")}, "bad_kept_value"),
    ({"price": "abc"}, "bad_kept_value"),
    ({"price": 10**400}, "bad_kept_value"),
    ({"price": {}}, "bad_kept_value"),
    ({"day": "2026-02-30"}, "bad_kept_value"),
    ({"day": 20260101}, "bad_kept_value"),
    ({"at": "noon"}, "bad_kept_value"),
    ({"at": 1767225600}, "bad_kept_value"),
    ({"flag": "yes"}, "bad_kept_value"),
    ({"flag": 2}, "bad_kept_value"),
]

JSON_LINES: list[tuple[bytes, str]] = [
    (b"{", "malformed_json"),
    (b"}", "malformed_json"),
    (b'{"id": "p", "text": "cut of', "malformed_json"),
    (b'{"id": "p", "text": "a"} trailing', "malformed_json"),
    (b"{'id': 'p', 'text': 'single quotes'}", "malformed_json"),
    (b'{"id": "p", "text": "trailing comma",}', "malformed_json"),
    (b'{"id": "p" "text": "no comma"}', "malformed_json"),
    (b'{id: "p", text: "bare names"}', "malformed_json"),
    (b'{"id": "p", "text": "raw\ttab"}', "malformed_json"),
    (b'{"id": "p", "text": "raw\0nul"}', "malformed_json"),
    (b'{"id": "p", "text": "\\x41 bad escape"}', "malformed_json"),
    (b'{"id": "p", "text": "\\u12 short escape"}', "malformed_json"),
    (b'{"id": "p", "text": "a"} // comment', "malformed_json"),
    (b'{"id": "p", "text": "a"}{"id": "q", "text": "b"}', "malformed_json"),
    (b"id,text", "malformed_json"),
    (b"\0" * 40, "malformed_json"),
    (b'\xef\xbb\xbf{"id": "p", "text": "a mark in the middle"}', "malformed_json"),
    ('{"id": "p", "text": "utf-16"}'.encode("utf-16-le"), "malformed_json"),
    (b'{"id": "p", "text": ' + b"[" * 100_000, "malformed_json"),
    (b'{"id": "p", "n": ' + b"9" * 5000 + b"}", "malformed_json"),
    (b"[]", "not_an_object"),
    (b'["id", "text"]', "not_an_object"),
    (b'"text"', "not_an_object"),
    (b"5", "not_an_object"),
    (b"NaN", "not_an_object"),
    (b"null", "not_an_object"),
    (b"true", "not_an_object"),
    (b"{}", "missing_column"),
    (b'{"id": "p", "text": "\xff"}', "invalid_utf8"),
    (b'{"id": "p", "text": "caf\xe9 in latin-1"}', "invalid_utf8"),
    (b'{"id": "p", "text": "\xc0\xaf overlong"}', "invalid_utf8"),
    (b'{"id": "p", "text": "\xed\xa0\x80 surrogate"}', "invalid_utf8"),
    (b'{"id": "p", "text": "\xe2\x82"}', "invalid_utf8"),
    (b'{"id": "p", "text": "\xf4\x90\x80\x80 over U+10FFFF"}', "invalid_utf8"),
    (b'{"id\xff": "p", "text": "a"}', "invalid_utf8"),
    (b'{"id": "p", "text": "' + b"x" * (17 * MIB) + b'"}', "line_too_long"),
]


def shown(data: bytes) -> str:
    """How the beginning of a line must show in its payload."""
    return data[:20].decode(errors="backslashreplace")


def jsonl_object(name: str) -> Object:
    made = Object(b"\xef\xbb\xbf")
    parts: list[bytes] = []

    def add(data: bytes, reason: str | None, row: Change, payload: str, end: bytes = b"\n") -> None:
        number = len(made.rejects) + len(made.good)
        parts.append(data + end)
        if reason is None:
            made.good[number] = row
        else:
            made.rejects[number] = (reason, payload)

    for number, (change, reason) in enumerate(JSON_CHANGES):
        row = {key: value for key, value in (good_row(name, number) | change).items() if value is not GONE}
        add(json.dumps(row).encode(), reason, row, "" if reason == "too_long" else '"price"')
        row = good_row(name, 1000 + number)
        add(json.dumps(row, ensure_ascii=False).encode(), None, row, "", b"\r\n" if number % 2 else b"\n\n \n")
    for number, (line, reason) in enumerate(JSON_LINES):
        add(line, reason, {}, "" if reason == "missing_column" else shown(line))
        row = good_row(name, 2000 + number)
        add(json.dumps(row).encode(), None, row, "")
    made.data = b"\xef\xbb\xbf" + b"".join(parts)[:-1]  # no newline at the end
    return made


# ---- CSV and TSV

CSV_COLUMNS = ("id", "text", "group", "n", "price", "day", "at", "flag", "meta.title")

CSV_CHANGES: list[tuple[dict[str, str], str | None]] = [
    ({"text": ""}, None),
    ({"text": 'quoted "newline"\nand, comma\tand tab\r\nand more'}, None),
    ({"text": "nul \0 inside"}, None),
    ({"text": "lone \r return"}, None),
    ({"text": "\u2028 line and \x85 next line"}, None),
    ({"n": "", "price": "", "day": "", "at": "", "flag": ""}, None),
    ({"text": LONG}, "too_long"),
    ({"text": "\udcff byte"}, "invalid_utf8"),
    ({"text": "caf\udce9 in latin-1"}, "invalid_utf8"),
    ({"text": "\udced\udca0\udc80 surrogate"}, "invalid_utf8"),
    ({"text": "\udcc0\udcaf overlong"}, "invalid_utf8"),
    ({"id": "\udcff"}, "invalid_utf8"),
    ({"id": ""}, "missing_id"),
    ({"group": "\udcff"}, "bad_kept_value"),
    ({"meta.title": "\udce2\udc82"}, "bad_kept_value"),
    ({"n": "x"}, "bad_kept_value"),
    ({"n": "1.5"}, "bad_kept_value"),
    ({"n": "99999999999"}, "bad_kept_value"),
    ({"n": "NULL"}, "bad_kept_value"),
    ({"price": "1,5"}, "bad_kept_value"),
    ({"day": "24.11.2026"}, "bad_kept_value"),
    ({"at": "noon"}, "bad_kept_value"),
    ({"flag": "yes"}, "bad_kept_value"),
]

CSV_LINES: list[tuple[list[str], str]] = [
    (["too few|fields"], "malformed_csv"),
    (["one"], "malformed_csv"),
    (["1|2|3|4|5|6|7|8|9|10"], "malformed_csv"),
    (["||||||||||||||||"], "malformed_csv"),
    (['p|"text after"a quote|a|1|1||||'], "malformed_csv"),
    (['p|"a stray quote', "that swallows a line", 'until one closes"|a|1|1||||x|y'], "malformed_csv"),
    (["\0" * 30], "malformed_csv"),
    (["x" * (17 * MIB)], "line_too_long"),
    (['p|"' + "y" * (17 * MIB)], "line_too_long"),
]


def csv_object(name: str, delimiter: str) -> Object:
    made = Object(b"")
    lines = [delimiter.join(CSV_COLUMNS)]

    def add_good(number: int, change: dict[str, str], reason: str | None = None) -> None:
        row = good_row(name, number)
        flat = {**row, "flag": str(row["flag"]).lower(), "meta.title": row["meta"]["title"], **change}
        del flat["meta"]
        lines.append(delimiter.join(_quoted(str(flat[column]), delimiter) for column in CSV_COLUMNS))
        source_row = len(made.rejects) + len(made.good)
        if reason is not None:
            made.rejects[source_row] = (reason, "" if reason == "too_long" else '"price"')
        else:
            typed = {key: None if key != "text" and value == "" else value for key, value in flat.items()}
            made.good[source_row] = {**typed, "meta": {"title": flat["meta.title"]}}

    for number, (change, reason) in enumerate(CSV_CHANGES):
        add_good(number, change, reason)
        add_good(1000 + number, {})
        lines.append("")  # a blank line is no row
    for number, (bad, reason) in enumerate(CSV_LINES):
        for line in bad:
            lines.append(line.replace("|", delimiter))
            made.rejects[len(made.rejects) + len(made.good)] = (reason, lines[-1][:20])
        add_good(2000 + number, {})
    for line in ('p|"a quote that never closes', "swallows the rest", *(f"and line {k}" for k in range(5))):
        lines.append(line.replace("|", delimiter))
        made.rejects[len(made.rejects) + len(made.good)] = ("malformed_csv", lines[-1][:20])
    made.data = ("\ufeff" + "\r\n".join(lines) + "\r\n").encode("utf-8", errors="surrogateescape")
    return made


def _quoted(value: str, delimiter: str) -> str:
    special = any(mark in value for mark in (delimiter, '"', "\n", "\r"))
    return '"' + value.replace('"', '""') + '"' if special else value


# ---- text lines

TEXT_LINES: list[tuple[bytes, str | None]] = [
    (b"", None),
    (b"   ", None),
    (b"nul \0 inside", None),
    (b"a lone \r return", None),
    ("\u2028 line and \x85 next line \U0001f600".encode(), None),
    (b"\xef\xbb\xbfa mark in the middle", None),
    (b'{"not": parsed', None),
    (b"\xff", "invalid_utf8"),
    (b"caf\xe9 in latin-1", "invalid_utf8"),
    (b"\xc0\xaf overlong", "invalid_utf8"),
    (b"\xed\xa0\x80 surrogate", "invalid_utf8"),
    (b"cut \xe2\x82", "invalid_utf8"),
    ("utf-16 \u20ac".encode("utf-16"), "invalid_utf8"),
    (LONG.encode(), "too_long"),
    (b"x" * (17 * MIB), "line_too_long"),
]


def text_object() -> Object:
    made = Object(b"")
    lines = []
    for number, (line, reason) in enumerate(TEXT_LINES):
        for data, why in ((line, reason), (TEXTS[number].encode(), None)):
            source_row = len(lines)
            lines.append(data)
            if why is None:
                made.good[source_row] = {"text": data.decode()}
            else:
                made.rejects[source_row] = (why, shown(data))
    made.data = b"\xef\xbb\xbf" + b"\r\n".join(lines)
    return made


# ---- Parquet and saved datasets: files of one night that differ in their columns' types


class RawText:
    """Marks a string column that is made from bytes, valid or not."""


Types = dict[str, Any]
TABLES: list[tuple[Types, list[tuple[Change, str | None]]]] = [
    (
        {},
        [
            ({}, None), ({"text": None}, "null_text"), ({"id": None}, "missing_id"), ({"text": LONG}, "too_long"),
            ({"meta": None}, None), ({"text": ""}, None), ({"text": "nul \0 inside"}, None), ({"n": None}, None),
        ],
    ),
    ({"text": pa.null()}, [({"text": None}, "null_text")] * 3),
    ({"text": pa.int64()}, [({"text": 5}, "wrong_type"), ({"text": None}, "null_text")]),
    ({"text": pa.float64()}, [({"text": NAN}, "wrong_type")]),
    ({"text": pa.bool_()}, [({"text": True}, "wrong_type")]),
    ({"text": pa.binary()}, [({"text": b"bytes"}, "wrong_type")]),
    ({"text": pa.list_(pa.string())}, [({"text": ["a", "b"]}, "wrong_type"), ({"text": None}, "null_text")]),
    ({"text": pa.struct([("a", pa.string())])}, [({"text": {"a": "b"}}, "wrong_type")]),
    ({"text": pa.timestamp("us")}, [({"text": dt.datetime(2026, 1, 2)}, "wrong_type")]),
    ({"text": pa.decimal128(5, 2)}, [({"text": decimal.Decimal("1.50")}, "wrong_type")]),
    ({"text": pa.large_string()}, [({}, None), ({"text": None}, "null_text")]),
    ({"text": pa.dictionary(pa.int32(), pa.string())}, [({}, None), ({"text": None}, "null_text")]),
    (
        {"text": RawText},
        [({"text": b"caf\xc3\xa9"}, None), ({"text": b"caf\xe9"}, "invalid_utf8"), ({}, None),
         ({"text": b"\xed\xa0\x80"}, "invalid_utf8"), ({"text": None}, "null_text")],
    ),
    ({"id": RawText}, [({"id": b"\xff"}, "invalid_utf8"), ({}, None)]),
    ({"group": RawText}, [({"group": b"\xff"}, "invalid_utf8"), ({}, None)]),
    ({"id": pa.int64()}, [({"id": 77}, None), ({"id": None}, "missing_id")]),
    ({"id": pa.float64()}, [({"id": 1.0}, "missing_id")]),
    ({"id": pa.bool_()}, [({"id": True}, "missing_id")]),
    ({"id": pa.list_(pa.int32())}, [({"id": [1]}, "missing_id")]),
    ({"n": pa.int64()}, [({}, None), ({"n": 2**40}, "bad_kept_value")]),
    ({"n": pa.uint64()}, [({}, None), ({"n": 2**63}, "bad_kept_value")]),
    ({"n": pa.float64()}, [({"n": 7.0}, None), ({"n": 1.5}, "bad_kept_value"), ({"n": NAN}, "bad_kept_value")]),
    ({"n": pa.string()}, [({"n": " 7 "}, None), ({"n": "seven"}, "bad_kept_value"), ({"n": ""}, "bad_kept_value")]),
    ({"n": pa.null()}, [({"n": None}, None)]),
    ({"n": pa.list_(pa.int32())}, [({"n": [1]}, "bad_kept_value")]),
    ({"price": pa.string()}, [({"price": "1e3"}, None), ({"price": "free"}, "bad_kept_value")]),
    ({"price": pa.float32()}, [({"price": 0.5}, None)]),
    ({"day": pa.string()}, [({}, None), ({"day": "24.11.2026"}, "bad_kept_value")]),
    ({"day": pa.int32()}, [({"day": 20260101}, "bad_kept_value")]),
    ({"day": pa.date32()}, [({"day": dt.date(2026, 1, 2)}, None)]),
    ({"at": pa.timestamp("us")}, [({"at": dt.datetime(2026, 1, 2, 3)}, None), ({"at": 2**60}, "bad_kept_value")]),
    ({"at": pa.timestamp("ns", "UTC")}, [({"at": dt.datetime(2026, 1, 2, 3)}, None)]),
    ({"at": pa.int64()}, [({"at": 1767225600}, "bad_kept_value")]),
    ({"flag": pa.string()}, [({"flag": "true"}, None), ({"flag": "yes"}, "bad_kept_value")]),
    ({"flag": pa.int8()}, [({"flag": 1}, None), ({"flag": 2}, "bad_kept_value")]),
    ({"meta": pa.struct([("other", pa.int8()), ("title", pa.int64())])}, [({"meta": {"title": 5}}, None)]),
]  # fmt: skip

TABLE_TYPES: Types = {
    "id": pa.string(), "text": pa.string(), "group": pa.string(), "n": pa.int32(), "price": pa.float64(),
    "day": pa.string(), "at": pa.string(), "flag": pa.bool_(), "meta": pa.struct([("title", pa.string())]),
}  # fmt: skip


def tables(name: str) -> Iterator[Object]:
    """One object per kind of file; `data` is its table."""
    for number, (types, changes) in enumerate(TABLES):
        made = Object(b"")
        rows = []
        for source_row, (change, reason) in enumerate(changes):
            row = good_row(name, number * 100 + source_row) | change
            rows.append(row)
            if reason is None:
                made.good[source_row] = {key: _plain(value) for key, value in row.items()}
            else:
                made.rejects[source_row] = (reason, "" if reason == "too_long" else '"price"')
        columns = {
            column: _array([row[column] for row in rows], types.get(column, kind))
            for column, kind in TABLE_TYPES.items()
        }
        made.data = pa.table(columns)
        yield made


def _array(values: list[Any], kind: Any) -> pa.Array:
    if kind is not RawText:
        return pa.array(values, kind)
    raw = [value.encode() if isinstance(value, str) else value for value in values]
    return pa.array(raw, pa.binary()).view(pa.string())


def _plain(value: Any) -> Any:
    plain: dict[type, Callable[[Any], Any]] = {
        bytes: bytes.decode, dt.datetime: dt.datetime.isoformat, dt.date: dt.date.isoformat,
    }  # fmt: skip
    return plain.get(type(value), lambda same: same)(value)
