"""How a process ends when it is asked to: at once, or after the work in hand where that takes a few seconds only."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pipeline.processes import PARENT_VARIABLE

STOP_AFTER_S = 5
"""Seconds that work in hand is given after the signal; who sends it waits twice as long before it kills."""


def end_on_signals() -> None:
    """SIGTERM ends this process with exit code 143; in a child of ours SIGINT does so with 130.

    Ctrl-C reaches a whole process group: the parent says then what there is to say, its children say nothing.
    """
    signal.signal(signal.SIGTERM, _end)
    if PARENT_VARIABLE in os.environ:
        signal.signal(signal.SIGINT, _end)
    elif signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see pipeline.__main__
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    del frame
    sys.exit(128 + number)


@contextmanager
def finished_first() -> Iterator[None]:
    """A signal during the body ends the process after it, or within it once STOP_AFTER_S have passed."""
    asked: list[int] = []

    def later(number: int, frame: FrameType | None) -> None:
        del frame
        if not asked:
            asked.append(number)
            signal.signal(signal.SIGALRM, lambda *_: sys.exit(128 + number))
            signal.alarm(STOP_AFTER_S)

    before = {number: signal.signal(number, later) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:
        sys.exit(128 + asked[0])
