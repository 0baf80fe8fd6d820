"""What a user may write for one field of a job file, beside what pydantic knows. Errors name the valid choices."""

from __future__ import annotations

import re
import zoneinfo
from typing import Any

from compile.shapes import Shape
from compile.toolchains import DECODERS, target_module

REPLAN_SHARE = 0.05
"""`replan: auto` makes a new plan when it saves at least this share of the infer seconds, net of compiling."""


def shapes(value: Any) -> Any:
    """`auto` is an empty tuple; a shape is written BATCHxLENGTH or [batch, length]."""
    if value == "auto":
        return ()
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("write auto, or a list of shapes such as [16x128, 4x512]")
    found = []
    for item in value:
        if isinstance(item, list) and len(item) == 2 and all(type(number) is int for number in item):
            found.append(Shape(batch=item[0], length=item[1]))
        else:
            found.append(item if isinstance(item, Shape) else Shape.parse(str(item)))
    if len({shape.length for shape in found}) != len(found):
        raise ValueError("two shapes have one length; keep one of them")
    return tuple(sorted(found))


def workers(value: Any) -> Any:
    if value in ("auto", None):
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1000:
        raise ValueError("write auto (one per core) or a number from 1 to 1000")
    return value


def known_target(value: str) -> str:
    """A target of any task; whether it is one of the job's is checked with the task."""
    if value not in DECODERS:
        target_module(value)
    return value


def timezone(value: str) -> str:
    if value not in zoneinfo.available_timezones():
        raise ValueError(f"unknown time zone {value!r}; write an IANA name, for example UTC or Europe/Berlin")
    return value


def cron(value: str) -> str:
    from croniter import croniter  # what Airflow reads it with

    presets = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")
    if value in presets or (len(value.split()) == 5 and croniter.is_valid(value)):
        return value
    raise ValueError(
        f"{value!r} is not a cron expression; write five fields (minute, hour, day of month, month, day of week), "
        f"for example '0 2 * * *', or one of {', '.join(presets)}"
    )


def replan_share(value: Any) -> Any:
    """`never` is None, `auto` is the default threshold."""
    if value in ("never", None):
        return None
    if value == "auto":
        return REPLAN_SHARE
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1:
        raise ValueError("write never, auto, or the share of seconds that a re-plan must save, for example 0.1")
    return float(value)


def only_ds_in_braces(uri: str) -> str:
    """A URI in which `{ds}` is all that has braces. Raises ValueError: nothing else is filled in."""
    other = re.search(r"[{}]", uri.replace("{{ds}}", "{{ds").replace("{ds}", ""))
    if other:
        raise ValueError(
            "only {ds}, the partition date, is filled in here, in single braces; "
            "write ? for a brace that belongs to a name"
        )
    return uri
