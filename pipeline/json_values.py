"""JSON texts as typed columns: which schemas have a column type, and how a text becomes its value. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

MAX_DEPTH = 8
_SCALARS = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_NAME = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]*")


class _NotFlatError(Exception):
    """A schema that has no column type."""


def value_type(schema: Mapping[str, Any]) -> pa.DataType | None:
    """The struct that values of a JSON schema are, None for a schema that has none.

    It has one when it is an object of named properties which are strings, whole numbers (int64), numbers (float64),
    booleans, enums of one of these, lists of such, or objects like it; any of them may be null or absent.
    """
    try:
        found = _type(schema, schema, 0)
    except _NotFlatError:
        return None
    return found if pa.types.is_struct(found) else None


def parse_value(text: str, kind: pa.DataType) -> Any:
    """The text as a value of the type. Raises ValueError for a text that is no JSON or does not fit it."""
    try:
        found = _fitted(json.loads(text), kind)
    except (RecursionError, OverflowError) as error:
        raise ValueError(f"nested too deeply or too large: {error}") from error
    if found is None:
        raise ValueError("null is no object")
    return found


def _type(schema: Any, root: Mapping[str, Any], depth: int) -> pa.DataType:
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        raise _NotFlatError
    schema = _resolved(schema, root)
    options = schema.get("anyOf") or schema.get("oneOf")
    if options is not None:
        return _one_of([option for option in options if option != {"type": "null"}], root, depth)
    if "enum" in schema or "const" in schema:
        return _enumerated(schema["enum"] if "enum" in schema else [schema["const"]])
    named = schema.get("type")
    kinds = [kind for kind in (named if isinstance(named, list) else [named]) if kind != "null"]
    if len(kinds) != 1:
        raise _NotFlatError
    if kinds[0] == "array":
        return pa.list_(_type(schema.get("items"), root, depth + 1))
    if kinds[0] == "object":
        return _struct(schema.get("properties"), root, depth)
    if kinds[0] not in _SCALARS:
        raise _NotFlatError
    return _SCALARS[kinds[0]]


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a reference within the schema, as pydantic writes them; also where it stands alone in allOf."""
    for _ in range(MAX_DEPTH):
        alone = schema.get("allOf")
        if isinstance(alone, list) and len(alone) == 1 and isinstance(alone[0], Mapping):
            schema = alone[0]
        reference = schema.get("$ref")
        if reference is None:
            if "allOf" in schema:
                raise _NotFlatError
            return schema
        found: Any = root
        for part in str(reference).removeprefix("#").strip("/").split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            raise _NotFlatError
        schema = found
    raise _NotFlatError


def _one_of(options: list[Any], root: Mapping[str, Any], depth: int) -> pa.DataType:
    kinds = [_type(option, root, depth + 1) for option in options]
    if not kinds or any(kind != kinds[0] for kind in kinds):
        raise _NotFlatError
    return kinds[0]


def _enumerated(values: Any) -> pa.DataType:
    kinds = {type(value) for value in values if value is not None} if isinstance(values, list) else set()
    if kinds == {int, float}:
        kinds = {float}
    names = {str: "string", int: "integer", float: "number", bool: "boolean"}
    if len(kinds) != 1 or not kinds <= set(names):
        raise _NotFlatError
    return _SCALARS[names[kinds.pop()]]


def _struct(properties: Any, root: Mapping[str, Any], depth: int) -> pa.DataType:
    """Names are those that every engine takes as they are, and that differ by more than case."""
    if not isinstance(properties, Mapping) or not properties:
        raise _NotFlatError
    if not all(_NAME.fullmatch(name) for name in properties) or len({n.lower() for n in properties}) < len(properties):
        raise _NotFlatError
    return pa.struct([pa.field(name, _type(item, root, depth + 1)) for name, item in properties.items()])


def _fitted(value: Any, kind: pa.DataType) -> Any:
    """What is stored. Properties that the schema does not name stay in the text alone."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        if not isinstance(value, dict):
            raise ValueError(f"a {type(value).__name__} is no object")
        return {field.name: _fitted(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind):
        if not isinstance(value, list):
            raise ValueError(f"a {type(value).__name__} is no array")
        return [_fitted(item, kind.value_type) for item in value]
    return _scalar(value, kind)


def _scalar(value: Any, kind: pa.DataType) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == _SCALARS["integer"] and number and math.isfinite(value):  # 1e999 is infinity to Python
        if int(value) == value and -(1 << 63) <= value < 1 << 63:
            return int(value)
    elif kind == _SCALARS["number"] and number:
        if math.isfinite(float(value)):
            return float(value)
    elif (kind == _SCALARS["string"] and isinstance(value, str)) or (
        kind == _SCALARS["boolean"] and isinstance(value, bool)
    ):
        return value
    raise ValueError(f"a {type(value).__name__} does not fit {kind}")
