"""How a piece of a shard is executed in a process of its own, on the cores of the worker that starts it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pipeline.child_errors import child_error, died, last_words
from pipeline.processes import StepProcess


def run_piece(
    run_uri: str, shard: int, start: int, stop: int, say: Callable[[str], None], descriptors: Sequence[int] = ()
) -> tuple[int, dict[str, Any], Exception | None]:
    """See pipeline.isolation.PieceRunner: exit code, result, and the error where the process could name one.

    It inherits the worker's environment and affinity, and with `descriptors` the lease: its cores stay leased until it
    ends, also when the worker is killed.
    """
    place = ["--run", run_uri, "--shard", str(shard), "--start", str(start), "--stop", str(stop)]
    process = StepProcess(["piece", *place], say, lambda rows: None, descriptors=descriptors)
    try:
        code, result = process.wait()
    except BaseException:
        process.stop()
        raise
    if died(code):
        say(f"infer: shard {shard}: rows {start} to {stop}: {last_words(code, process)}")
        return code, result, None
    error = child_error("infer", code, process) if code else None
    return code, result, error
