"""How many graphs this process has compiled: the infer step reports it, and it must be 0 there.

The one piece of module state in this package, because what it counts belongs to the process.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

_lock = threading.Lock()
_count = 0


def compilations() -> int:
    """Graphs compiled by this process so far, through any target."""
    return _count


def record_compilation() -> None:
    """Called by a target each time its toolchain compiles."""
    global _count  # noqa: PLW0603 - see the module's docstring
    with _lock:
        _count += 1


def count_calls(owner: Any, name: str) -> None:
    """Make every later call of `owner.name` count, whoever calls it: a toolchain's own entry point. Idempotent."""
    original = getattr(owner, name)
    if getattr(original, "counts_compilations", False):
        return

    @functools.wraps(original)
    def counted(*args: Any, **kwargs: Any) -> Any:
        record_compilation()
        return original(*args, **kwargs)

    counted.counts_compilations = True  # type: ignore[attr-defined]
    setattr(owner, name, counted)
