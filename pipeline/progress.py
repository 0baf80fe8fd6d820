"""How long work tells how far it is: a bar over rows, which the caller draws or not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol


class Bar(Protocol):
    """Opened with the rows to come; the function that it yields moves it on by a number of rows."""

    def __call__(self, total_rows: int) -> contextlib.AbstractContextManager[Callable[[int], None]]: ...


@contextlib.contextmanager
def no_bar(total_rows: int) -> Iterator[Callable[[int], None]]:
    """For logs, where the lines that steps say are enough."""
    del total_rows
    yield lambda rows: None
