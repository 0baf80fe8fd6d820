"""How a source value becomes a value of the type that the job declares for a kept column. Pure."""

from __future__ import annotations

import datetime
import json
import re
import struct
from collections.abc import Callable
from typing import Any


def cast_value(value: Any, kind: str) -> Any:
    """The value as `kind` (a `pipeline.job.ColumnType`); null stays null. Raises ValueError that names the value."""
    if value is None:
        return None
    try:
        return _CASTS[kind](value)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{shown(value)} is not {kind}") from error


def shown(value: Any) -> str:
    """The value for a message: short, printable, whatever it is."""
    try:
        return repr(str(value)[:80])
    except (ValueError, RecursionError):  # an integer of over 4,300 digits, a value nested almost too deep to parse
        return f"a {type(value).__name__}"


def _string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = _text(value)
    text.encode()  # a lone surrogate cannot be written as UTF-8: UnicodeEncodeError is a ValueError
    return text


def _text(value: Any) -> str:
    """Lists and objects as JSON; bytes are taken for UTF-8 text; scalars of Parquet (decimals, times) as they print."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, list | tuple | dict):
        return json.dumps(value, default=str, ensure_ascii=False, sort_keys=True)
    return str(value)


def _integer(bits: int) -> Callable[[Any], int]:
    def cast(value: Any) -> int:
        # int() would cut a fraction off, and take '1_000', digits of any script and bytes.
        if isinstance(value, bytes) or (isinstance(value, str) and not re.fullmatch(r"\s*[+-]?[0-9]+\s*", value)):
            raise ValueError(value)
        number = int(value)
        if not isinstance(value, str) and number != value:
            raise ValueError(value)
        if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
            raise OverflowError(value)
        return number

    return cast


def _float(code: str) -> Callable[[Any], float]:
    def cast(value: Any) -> float:
        if isinstance(value, bytes) or (isinstance(value, str) and "_" in value):
            raise ValueError(value)
        number = float(value)
        struct.pack(code, number)  # OverflowError for what a 32-bit float could only store as infinity
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
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return datetime.datetime.combine(value, datetime.time())
    moment = value if isinstance(value, datetime.datetime) else datetime.datetime.fromisoformat(value)
    return moment.astimezone(datetime.UTC).replace(tzinfo=None) if moment.tzinfo else moment


_CASTS: dict[str, Callable[[Any], Any]] = {
    "string": _string,
    "bool": _bool,
    "int32": _integer(32),
    "int64": _integer(64),
    "float": _float("<f"),
    "double": _float("<d"),
    "date": _date,
    "timestamp": _timestamp,
}
