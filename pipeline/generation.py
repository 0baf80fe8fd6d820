"""How often a partition was started over: each time, its work begins in folders of its own and nothing is deleted."""

from __future__ import annotations

import json

from pipeline.context import Context
from pipeline.errors import StorageError

_ATTEMPTS = 20


def current_generation(context: Context) -> int:
    """0 for a partition that was never started over."""
    return _read(context)[0]


def start_over(context: Context) -> int:
    """The next generation. A run of an earlier one that is still going on keeps all that it needs."""
    for _ in range(_ATTEMPTS):
        generation, etag = _read(context)
        data = json.dumps({"generation": generation + 1}).encode()
        if context.objects.put_if(context.layout.generation(context.ds), data, etag):
            return generation + 1
    raise StorageError(f"ds={context.ds}: others keep starting this partition over at the same time; run again")


def _read(context: Context) -> tuple[int, str | None]:
    uri = context.layout.generation(context.ds)
    try:
        etag = context.objects.head(uri).etag  # before the content: if that is newer, the swap fails and we look again
        return int(json.loads(context.objects.get(uri))["generation"]), etag
    except FileNotFoundError:
        return 0, None
