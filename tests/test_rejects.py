"""Every reason code can be reached, the list is closed, and payloads are bounded, valid text."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import rejects
from pipeline.job import Input
from pipeline.rejects import MAX_PAYLOAD_CHARS, REASONS, Accepted, Reject, check_row, reject

SPEC = Input.model_validate({"uri": "in/", "text": "t", "pair": "p", "id": "i", "keep": {"n": "int32", "s": "string"}})
TEMPLATE = Input.model_validate({"uri": "in/", "template": "{a}: {b}"})
ANY_CHARACTER = st.characters(codec=None)
"""Lone surrogates included."""
ROW: dict[str, Any] = {"t": "one", "p": "two", "i": "id-1", "n": 3, "s": "kept"}
DEEP: Any = None
for _ in range(3000):
    DEEP = [DEEP]

FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"p": "two", "i": "1"}, "missing_column", "no column 't'"),
    ({"t": "one", "i": "1"}, "missing_column", "no column 'p'"),
    ({"t": "one", "p": "two"}, "missing_column", "no column 'i'"),
    (ROW | {"t": None}, "null_text", "column 't' is null"),
    (ROW | {"p": None}, "null_text", "column 'p' is null"),
    (ROW | {"t": 5}, "wrong_type", "column 't' is int, not text"),
    (ROW | {"t": b"x"}, "wrong_type", "column 't' is bytes, not text"),
    (ROW | {"t": ["x"]}, "wrong_type", "column 't' is list, not text"),
    (ROW | {"t": "ok \ud83d"}, "lone_surrogate", "column 't', character 3"),
    (ROW | {"p": "\udcff"}, "invalid_utf8", "column 'p', character 0"),
    (ROW | {"i": "\udc80"}, "invalid_utf8", "column 'i', character 0"),
    (ROW | {"i": None}, "missing_id", "id column 'i' is 'None'; an id is a text or a whole number"),
    (ROW | {"i": True}, "missing_id", "id column 'i' is 'True'; an id is a text or a whole number"),
    (ROW | {"i": 1.5}, "missing_id", "id column 'i' is '1.5'; an id is a text or a whole number"),
    (ROW | {"i": DEEP}, "missing_id", "id column 'i' is a list; an id is a text or a whole number"),
    (ROW | {"n": "x"}, "bad_kept_value", "column 'n', kept as 'n': 'x' is not int32"),
    (ROW | {"s": "\ud800"}, "bad_kept_value", r"column 's', kept as 's': '\ud800' is not string"),
    (ROW | {"s": DEEP}, "bad_kept_value", "column 's', kept as 's': a list is not string"),
]


@pytest.mark.parametrize(("row", "reason", "message"), FAULTS, ids=[f"{item[1]}-{item[2][:20]}" for item in FAULTS])
def test_faults_of_a_row(row: dict[str, Any], reason: str, message: str) -> None:
    found = check_row(row, SPEC)
    assert isinstance(found, Reject)
    assert (found.stage, found.reason, found.message) == ("read", reason, message)


def test_a_good_row() -> None:
    assert check_row(ROW, SPEC) == Accepted("one", "two", "id-1", (3, "kept"))
    assert check_row({"t": "", "p": "", "i": 7}, SPEC) == Accepted("", "", "7", (None, None))


def test_a_template_takes_text_numbers_and_booleans_but_not_null() -> None:
    assert check_row({"a": "{b}", "b": 1.5}, TEMPLATE) == Accepted("{b}: 1.5", None, None, ())
    assert check_row({"a": True, "b": "x"}, TEMPLATE) == Accepted("true: x", None, None, ())
    for value, reason in ((None, "null_text"), ([], "wrong_type"), ("\ud800", "lone_surrogate")):
        found = check_row({"a": value, "b": "x"}, TEMPLATE)
        assert isinstance(found, Reject)
        assert found.reason == reason


def test_every_reason_is_used_and_every_used_reason_is_known() -> None:
    """Reads the source: a code that no rule gives is dead, one that is not listed has no meaning for readers."""
    used = set()
    for path in Path(rejects.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in REASONS:
                used.add((path.name, node.value))
    elsewhere = {reason for name, reason in used if name != "rejects.py"}
    assert elsewhere | {reason for _, reason, _ in FAULTS} == set(REASONS)


def test_a_reason_that_is_not_listed_is_refused() -> None:
    with pytest.raises(AssertionError):
        reject("read", "strange", "m", "")


@pytest.mark.parametrize(
    ("original", "payload"),
    [
        (b"caf\xc3\xa9 \xff", "café \\xff"),
        ("a\ud800b", "a\\ud800b"),
        ({"a": "é", "b": b"x"}, '{"a": "é", "b": "b\'x\'"}'),
        (["a", "\udcff"], '["a", "\\udcff"]'),
        (b"\xf0\x9f\x98\x80" * 3000, "😀" * MAX_PAYLOAD_CHARS),
        ("x" * 5000, "x" * MAX_PAYLOAD_CHARS),
        ("\ud800" * 5000, ("\\ud800" * MAX_PAYLOAD_CHARS)[:MAX_PAYLOAD_CHARS]),
        (DEEP, "nested too deeply to be shown"),
        (b"", ""),
    ],
    ids=range(9),
)
def test_payloads(original: Any, payload: str) -> None:
    assert reject("read", "malformed_json", "m", original).payload == payload


@given(
    st.binary(max_size=9000)
    | st.text(ANY_CHARACTER, max_size=3000)
    | st.dictionaries(st.text(ANY_CHARACTER), st.text(ANY_CHARACTER) | st.binary() | st.floats())
)
def test_a_payload_is_always_short_valid_text(original: Any) -> None:
    payload = reject("read", "malformed_json", "m", original).payload
    assert len(payload) <= MAX_PAYLOAD_CHARS
    payload.encode("utf-8")


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(ANY_CHARACTER) | st.binary()


@given(st.dictionaries(st.sampled_from(["t", "p", "i", "n", "s"]), ANYTHING))
def test_any_row_is_accepted_or_rejected_with_writable_values(row: dict[str, Any]) -> None:
    found = check_row(row, SPEC)
    if isinstance(found, Reject):
        assert found.reason in REASONS
        (found.message + found.payload).encode()
    else:
        assert found.row_id is not None
        (found.text + str(found.pair) + found.row_id).encode()
