"""How an Airflow task runs one step: which night, which process, what its end means. Every DAG parse imports it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from types import FrameType
from typing import IO, Any

from pipeline.processes import ADVANCE_PREFIX, PARENT_VARIABLE

MAX_MAPPED_TASKS = 1000
"""Airflow's own limit is 1,024, and large maps slow its scheduler; a task does many shards instead."""
_REFUSED = {2: "the job or its arguments", 3: "the reject budget", 4: "an artifact"}
"""Exit codes that a retry cannot help, and what is wrong."""
_STOP_GRACE_S = 30
_LAST_LINES = 8

log = logging.getLogger("lengthwise.step")


class StepRefusedError(Exception):
    """The job, the data or an artifact is wrong: mend it, then clear the task; a retry would end the same way."""


class StepFailedError(Exception):
    """Storage, a worker or the machine failed: finished work is kept, and a retry goes on from it."""


def partition_date(
    asked: str | None,
    partition_key: str | None,
    interval_start: datetime | None,
    run_after: datetime,
    timezone: tzinfo,
) -> str:
    """The night (YYYY-MM-DD) that a DAG run is about; never Airflow's `ds`, which differs by how a run was started.

    In this order: the date that the user asked for, the run's partition key, the start of its data interval, the day
    before the run. Times are read in the job's time zone, in which its schedule is written. Raises StepRefusedError
    for an asked date or key that is no date.
    """
    for name, value in (("partition_date", asked), ("the run's partition key", partition_key)):
        if value:
            try:
                if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", value):
                    raise ValueError(value)
                datetime.strptime(value, "%Y-%m-%d")
            except ValueError:
                raise StepRefusedError(f"{name} must be a date as YYYY-MM-DD, not {value!r}") from None
            return value
    if interval_start is not None:
        return interval_start.astimezone(timezone).date().isoformat()
    return (run_after.astimezone(timezone).date() - timedelta(days=1)).isoformat()


def fan_out(count: int) -> list[dict[str, int]]:
    """What the mapped tasks of a step are given: its index, and of how many. Never empty, never above 1,000."""
    of = min(max(count, 1), MAX_MAPPED_TASKS)
    return [{"index": index, "of": of} for index in range(of)]


def run_step(step: str, job_file: str, ds: str, *args: str) -> dict[str, Any]:
    """Run one pipeline step in a process of its own; returns what it reports. Raises as `run_process` does."""
    argv = [sys.executable, "-m", "pipeline", "step", step, "--job", job_file, "--ds", ds, *args]
    return run_process(f"step {step} of ds={ds}", argv)


def run_process(name: str, argv: list[str]) -> dict[str, Any]:
    """Run a command, its output forwarded to the log line by line; returns the JSON object on its last output line.

    Airflow forks its task processes, which no model runtime survives; hence a fresh process. It stays in this process
    group, and a SIGTERM to us is passed on to it. Raises StepRefusedError for exit codes 2 to 4 and StepFailedError
    for every other failure, with the last lines of its output.
    """
    # The step has no business with Airflow's database, keys and connections. It dies with us, even by kill -9.
    env = {key: value for key, value in os.environ.items() if "AIRFLOW" not in key}
    env |= {"PYTHONUNBUFFERED": "1", PARENT_VARIABLE: str(os.getpid())}
    log.info("%s: %s", name, shlex.join(argv))
    last_lines: deque[str] = deque(maxlen=_LAST_LINES)
    result: str | None = None
    with _stopped_with_us(argv, env) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        reader = threading.Thread(target=_forward, args=(process.stderr, last_lines), daemon=True)
        reader.start()
        for line in process.stdout:
            # Logged once the next line came: the last one is the result, not a message.
            if result is not None:
                log.info("%s", result)
                last_lines.append(result)
            result = line.rstrip("\n")
        status = process.wait()
        reader.join()
    if status != 0:
        raise _failure(name, status, [*last_lines, *([result] if result else [])])
    return _decoded(name, result or "")


def _forward(stream: IO[str], last_lines: deque[str]) -> None:
    for line in stream:
        if not line.startswith(ADVANCE_PREFIX):
            log.info("%s", line.rstrip("\n"))
            last_lines.append(line.rstrip("\n"))


@contextlib.contextmanager
def _stopped_with_us(argv: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A child that is sent our SIGTERM, and is stopped and waited for when an exception ends the block."""
    process = subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    before = signal.getsignal(signal.SIGTERM)

    def pass_on(number: int, frame: FrameType | None) -> None:
        process.terminate()
        if callable(before):
            before(number, frame)

    # Airflow's supervisor signals only its direct child when the scheduler or worker shuts down.
    signal.signal(signal.SIGTERM, pass_on)
    try:
        yield process
    except BaseException:
        process.terminate()
        try:
            process.wait(_STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _failure(name: str, status: int, last_lines: list[str]) -> Exception:
    how = f"was ended by signal {-status}" if status < 0 else f"ended with exit code {status}"
    if status in _REFUSED:
        how += f" ({_REFUSED[status]} is wrong; not tried again)"
    message = "\n".join([f"{name} {how}", *last_lines])
    return StepRefusedError(message) if status in _REFUSED else StepFailedError(message)


def _decoded(name: str, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise StepFailedError(f"{name} succeeded, but its last output line is no JSON object: {line[:200]!r}")
    return value
