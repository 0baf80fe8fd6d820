"""Follows DAG runs to their end and says, line by line, what happened; shows the log of what failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from demo.airflow_client import AirflowClient

_ENDED = ("success", "failed", "skipped", "upstream_failed", "removed")
_POLL_S = 0.5
_LOG_LINES = 40


class RunFailedError(Exception):
    """A DAG run failed; the message has the failed task and the end of its log."""


def night_of(run: dict[str, Any]) -> str:
    """The date that a run is about: what it was triggered with, or its data interval."""
    return str((run.get("conf") or {}).get("partition_date") or run["data_interval_start"] or run["run_after"])[:10]


@dataclass(slots=True)
class Progress:
    """Says what is new since it looked last; a task that ended is told once, its mapped parts together."""

    client: AirflowClient
    dag_id: str
    say: Callable[[str], None]
    _told: set[tuple[str, str]] = field(default_factory=set)

    def follow(self, wanted: Callable[[dict[str, Any]], bool], done: Callable[[], bool], timeout_s: float) -> None:
        """Until `done` and every wanted run has ended. Raises RunFailedError when one failed, or TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while True:
            finished = done()
            runs = [run for run in self.client.runs(self.dag_id) if wanted(run)]
            for run in runs:
                self._look(run)
            if finished and runs and all(run["state"] in ("success", "failed") for run in runs):
                return
            if time.monotonic() > deadline:
                states = ", ".join(f"{night_of(run)} {run['state']}" for run in runs)
                raise TimeoutError(f"the runs of {self.dag_id} did not end within {timeout_s:g} s: {states}")
            time.sleep(_POLL_S)

    def _look(self, run: dict[str, Any]) -> None:
        if (run["dag_run_id"], "") in self._told or run["state"] == "queued":
            return
        parts: dict[str, list[dict[str, Any]]] = {}
        for task in self.client.task_instances(self.dag_id, run["dag_run_id"]):
            parts.setdefault(task["task_id"], []).append(task)
        ended = {name: tasks for name, tasks in parts.items() if all(task["state"] in _ENDED for task in tasks)}
        for name, tasks in sorted(ended.items(), key=lambda item: max(task["end_date"] or "" for task in item[1])):
            if (run["dag_run_id"], name) not in self._told:
                self._told.add((run["dag_run_id"], name))
                self.say(f"{night_of(run)}  {name:<9} {_summary(tasks)}")
        failed = [task for tasks in parts.values() for task in tasks if task["state"] == "failed"]
        if run["state"] == "failed":
            raise RunFailedError(self._explain(run, failed))
        if run["state"] == "success":
            self._told.add((run["dag_run_id"], ""))
            self.say(f"{night_of(run)}  published")

    def _explain(self, run: dict[str, Any], failed: list[dict[str, Any]]) -> str:
        lines = [f"the run of {night_of(run)} failed ({run['dag_run_id']})"]
        for task in failed[:1]:
            lines.append(f"the end of the log of task {task['task_id']} (map index {task['map_index']}):")
            lines += [f"    {line}" for line in self.client.log_lines(task)[-_LOG_LINES:]]
        return "\n".join(lines)


def _summary(tasks: list[dict[str, Any]]) -> str:
    states = {task["state"] for task in tasks}
    seconds = max(task["duration"] or 0 for task in tasks)
    parts = f"{len(tasks)} in parallel, " if len(tasks) > 1 else ""
    return f"{'done' if states == {'success'} else ', '.join(sorted(map(str, states)))} ({parts}{seconds:.1f} s)"
