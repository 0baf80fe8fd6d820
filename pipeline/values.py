"""How a source value becomes a value of the type that the job declares for a kept column. Pure."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable
from typing import Any


def cast_value(value: Any, kind: str) -> Any:
    """The value as `kind` (a `pipeline.job.ColumnType`); null stays null. Raises ValueError that names the value."""
    if value is None:
        return None
    try:
        return _CASTS[kind](value)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{str(value)[:80]!r} is not {kind}") from error


def _string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = value if isinstance(value, str) else str(value) if isinstance(value, int | float) else _json(value)
    text.encode()  # a lone surrogate cannot be written as UTF-8: UnicodeEncodeError is a ValueError
    return text


def _json(value: Any) -> str:
    if isinstance(value, datetime.date | datetime.datetime):
        return value.isoformat()
    return json.dumps(value, default=str, ensure_ascii=False, sort_keys=True)


def _integer(bits: int) -> Callable[[Any], int]:
    def cast(value: Any) -> int:
        if isinstance(value, float) and value != math.floor(value):
            raise ValueError(value)
        number = int(value)
        if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
            raise OverflowError(value)
        return number

    return cast


def _bool(value: Any) -> bool:
    named = {"true": True, "false": False, "1": True, "0": False}
    if isinstance(value, bool):
        return value
    if str(value).lower() not in named:
        raise ValueError(value)
    return named[str(value).lower()]


def _date(value: Any) -> datetime.date:
    if isinstance(value, datetime.datetime):
        return value.date()
    return value if isinstance(value, datetime.date) else datetime.date.fromisoformat(value)


def _timestamp(value: Any) -> datetime.datetime:
    """Naive, in UTC: the only kind that every reader shows alike."""
    moment = value if isinstance(value, datetime.datetime) else datetime.datetime.fromisoformat(value)
    return moment.astimezone(datetime.UTC).replace(tzinfo=None) if moment.tzinfo else moment


_CASTS: dict[str, Callable[[Any], Any]] = {
    "string": _string,
    "bool": _bool,
    "int32": _integer(32),
    "int64": _integer(64),
    "float": float,
    "double": float,
    "date": _date,
    "timestamp": _timestamp,
}
