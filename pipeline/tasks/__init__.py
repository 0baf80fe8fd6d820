"""Tasks: what the model's output for a row becomes. Found by name, one small module each."""

from __future__ import annotations

import importlib
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

TASKS = {"classify": "pipeline.tasks.classify"}


class Task(Protocol):
    """Pure: from logits to columns. Adding a task touches nothing but this folder and the job schema."""

    def fields(self, labels: tuple[str, ...], problem_type: str, all_scores: bool) -> list[pa.Field]:
        """The prediction columns of the output."""

    def columns(
        self, logits: NDArray[np.float32], labels: tuple[str, ...], problem_type: str, all_scores: bool
    ) -> list[pa.Array]:
        """One array per field, for logits of shape (rows, labels)."""


def load_task(name: str) -> Task:
    """The task of that name. Raises ValueError that lists the valid names."""
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; choose one of: {', '.join(TASKS)}")
    task: Task = importlib.import_module(TASKS[name]).task
    return task
