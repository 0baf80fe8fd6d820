"""Exact tables of what a source value becomes, per declared type."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.columns import ARROW_TYPES
from pipeline.values import cast_value

BERLIN = dt.timezone(dt.timedelta(hours=2))
DEEP: Any = None
for _ in range(3000):
    DEEP = [DEEP]

GOOD: list[tuple[Any, str, Any]] = [
    ("é", "string", "é"),
    ("", "string", ""),
    (True, "string", "true"),
    (1.5, "string", "1.5"),
    (2**70, "string", str(2**70)),
    ({"b": 1, "a": [None, "é"]}, "string", '{"a": [null, "é"], "b": 1}'),
    (decimal.Decimal("1.50"), "string", "1.50"),
    (b"caf\xc3\xa9", "string", "café"),
    (dt.date(2026, 1, 2), "string", "2026-01-02"),
    (dt.datetime(2026, 1, 2, 3), "string", "2026-01-02T03:00:00"),
    (dt.time(1, 2), "string", "01:02:00"),
    (True, "bool", True),
    (1, "bool", True),
    (0, "bool", False),
    ("TRUE", "bool", True),
    ("0", "bool", False),
    (5, "int32", 5),
    (5.0, "int32", 5),
    (" -5 ", "int32", -5),
    ("+7", "int64", 7),
    (True, "int32", 1),
    (decimal.Decimal("5"), "int32", 5),
    (2**31 - 1, "int32", 2**31 - 1),
    (-(2**31), "int32", -(2**31)),
    (2**63 - 1, "int64", 2**63 - 1),
    (str(-(2**63)), "int64", -(2**63)),
    (1, "float", 1.0),
    ("1e3", "double", 1000.0),
    (math.inf, "float", math.inf),
    (1e300, "double", 1e300),
    ("2026-02-28", "date", dt.date(2026, 2, 28)),
    (dt.date(2026, 1, 2), "date", dt.date(2026, 1, 2)),
    (dt.datetime(2026, 1, 2, 23, 59), "date", dt.date(2026, 1, 2)),
    ("2026-01-02T03:04:05", "timestamp", dt.datetime(2026, 1, 2, 3, 4, 5)),
    ("2026-01-02T03:04:05.000006Z", "timestamp", dt.datetime(2026, 1, 2, 3, 4, 5, 6)),
    ("2026-01-02T03:04:05+02:00", "timestamp", dt.datetime(2026, 1, 2, 1, 4, 5)),
    (dt.datetime(2026, 1, 2, 1, tzinfo=BERLIN), "timestamp", dt.datetime(2026, 1, 1, 23)),
    (dt.date(2026, 1, 2), "timestamp", dt.datetime(2026, 1, 2)),
]
BAD: list[tuple[Any, str, str]] = [
    ("\ud800", "string", r"'\ud800' is not string"),
    ({"a": "\udc80"}, "string", r"""{'a': '\\udc80'}" is not string"""),
    (b"\xff", "string", r"""b'\\xff'" is not string"""),
    (DEEP, "string", "a list is not string"),
    ("yes", "bool", "'yes' is not bool"),
    (2, "bool", "'2' is not bool"),
    ("1.5", "int32", "'1.5' is not int32"),
    (1.5, "int32", "'1.5' is not int32"),
    (decimal.Decimal("1.5"), "int32", "'1.5' is not int32"),
    ("1_000", "int64", "'1_000' is not int64"),
    ("\u0661", "int64", "'\u0661' is not int64"),
    ("", "int32", "'' is not int32"),
    (b"1", "int32", """b'1'" is not int32"""),
    (2**31, "int32", "'2147483648' is not int32"),
    (2**63, "int64", "'9223372036854775808' is not int64"),
    (-(2**63) - 1, "int64", "'-9223372036854775809' is not int64"),
    (math.nan, "int64", "'nan' is not int64"),
    (math.inf, "int64", "'inf' is not int64"),
    ([1], "int64", "'[1]' is not int64"),
    (10**5000, "int64", "a int is not int64"),
    ("1_0", "double", "'1_0' is not double"),
    ("x", "float", "'x' is not float"),
    (1e39, "float", "'1e+39' is not float"),
    ({}, "double", "'{}' is not double"),
    (10**400, "double", "is not double"),
    ("2026-02-30", "date", "'2026-02-30' is not date"),
    (20260101, "date", "'20260101' is not date"),
    ("2026-01-02T03:04:05", "date", "is not date"),
    ("noon", "timestamp", "'noon' is not timestamp"),
    (1767225600, "timestamp", "'1767225600' is not timestamp"),
    ("0001-01-01T00:00:00+14:00", "timestamp", "is not timestamp"),
]


@pytest.mark.parametrize(("value", "kind", "expected"), GOOD)
def test_values_that_fit(value: Any, kind: str, expected: Any) -> None:
    result = cast_value(value, kind)
    assert (result, type(result)) == (expected, type(expected))
    assert pa.array([result], ARROW_TYPES[kind])[0].as_py() == expected


@pytest.mark.parametrize(("value", "kind", "message"), BAD, ids=range(len(BAD)))
def test_values_that_do_not_fit(value: Any, kind: str, message: str) -> None:
    with pytest.raises(ValueError, match="is not") as raised:
        cast_value(value, kind)
    assert message in str(raised.value)
    str(raised.value).encode()


def test_nan_stays_nan() -> None:
    assert math.isnan(cast_value("nan", "float"))
    assert math.isnan(cast_value(math.nan, "double"))


@pytest.mark.parametrize("kind", ARROW_TYPES)
def test_null_stays_null(kind: str) -> None:
    assert cast_value(None, kind) is None


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)) | st.binary()
    | st.dates() | st.datetimes(timezones=st.none() | st.just(BERLIN)) | st.decimals(allow_nan=True) | st.times()
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(VALUES, st.sampled_from(sorted(ARROW_TYPES)))
def test_whatever_comes_fits_the_column_or_is_refused_with_a_printable_reason(value: Any, kind: str) -> None:
    message = ""
    try:
        result = cast_value(value, kind)
    except ValueError as error:
        result, message = None, str(error)
    message.encode()
    assert len(message) < 1000
    assert pa.array([result], ARROW_TYPES[kind]).type == ARROW_TYPES[kind]
