"""Tasks: what the model's output for a row becomes. Found by name, one small module each."""

from __future__ import annotations

import importlib
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.job import Job

TASKS = {"classify": "pipeline.tasks.classify", "generate": "pipeline.tasks.generate"}


class Task(Protocol):
    """Pure: from what shards hold to columns. What runs a task, see pipeline.workloads."""

    def output_type(self, labels: tuple[str, ...]) -> pa.DataType:
        """Of what one row gave, in a shard's result."""

    def fields(self, job: Job, labels: tuple[str, ...], problem_type: str) -> list[pa.Field]:
        """The prediction columns of the output."""

    def lines(self, output: pa.Array) -> NDArray[np.int64]:
        """How many output rows each row has, (rows,); for rows without fault."""

    def faults(self, output: pa.Array, job: Job) -> dict[int, str]:
        """Rows whose output is no prediction -> reason code; null is the output of a row that has a fault already."""

    def columns(self, output: pa.Array, job: Job, labels: tuple[str, ...], problem_type: str) -> list[pa.Array]:
        """One array per field, for rows without fault; the output rows of each follow each other."""


def load_task(name: str) -> Task:
    """The task of that name. Raises ValueError that lists the valid names."""
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; choose one of: {', '.join(TASKS)}")
    task: Task = importlib.import_module(TASKS[name]).task
    return task
