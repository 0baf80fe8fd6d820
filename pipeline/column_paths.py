"""Where a row has a named column: under the name itself, else along its dots into nested objects. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def lookup(values: Mapping[str, Any], column: str) -> Any:
    """The value; below a null everything is null.

    Raises KeyError where the row lacks the column, TypeError where something on the way holds no columns.
    """
    if column in values:
        return values[column]
    found: Any = values
    parts = column.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(found, Mapping):
            raise TypeError(f"{'.'.join(parts[:depth])!r} is {type(found).__name__}, not an object")
        if part not in found:
            raise KeyError(column)
        found = found[part]
        if found is None:
            return None
    return found
