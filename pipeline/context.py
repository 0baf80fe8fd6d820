"""What every step is given: the job, the date, the object store and where this machine keeps its cache."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.cores import available_cores, copies_here
from pipeline.errors import JobError
from pipeline.job import Job
from pipeline.layout import Layout
from pipeline.objects import Objects


def _silent(message: str) -> None:
    del message


def _still(rows: int) -> None:
    del rows


@dataclass(frozen=True, slots=True)
class Context:
    """Made once in the CLI and passed in; a step reads nothing else of its surroundings."""

    job: Job
    ds: str
    objects: Objects
    cache_dir: Path
    say: Callable[[str], None] = field(default=_silent)
    """Takes one line of progress for a person."""
    advance: Callable[[int], None] = field(default=_still)
    """Takes the number of rows that were just inferred."""

    @property
    def layout(self) -> Layout:
        return Layout(self.job.output.uri)

    @property
    def artifacts_uri(self) -> str:
        return self.job.artifacts or self.layout.artifacts

    @property
    def workers(self) -> int:
        """Processes of the steps that run on CPU cores."""
        return self.job.workers or len(available_cores())

    @property
    def infer_workers(self) -> int:
        """Copies of the model; where a job for NeuronCores is planned on a host without, as many as CPU cores.

        Raises JobError when this host's cores are not those that the job or the environment wants.
        """
        return self.job.workers or copies_here(self.job) or self.workers


def check_ds(ds: str) -> str:
    """A date as YYYY-MM-DD. Raises JobError."""
    try:
        if datetime.date.fromisoformat(ds).isoformat() == ds:
            return ds
    except ValueError:
        pass
    raise JobError(f"--ds {ds!r} is not a date; write YYYY-MM-DD, for example 2026-11-30")


def default_cache_dir() -> Path:
    """LENGTHWISE_CACHE, or the user's cache folder: models and artifacts, safe to delete at any time."""
    named = os.environ.get("LENGTHWISE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(named) if named else Path(base) / "lengthwise"
