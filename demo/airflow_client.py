"""What the demo and the tests ask of Airflow's REST API, and how its answers are read."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any


class ApiError(Exception):
    """Airflow answered with an error; the message has the status and what Airflow said."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"Airflow answered {status}: {text}")
        self.status = status


@dataclass(slots=True)
class AirflowClient:
    """One user's access to the API at `url`. Not for use by several threads."""

    url: str
    username: str
    password: str
    timeout_s: float = 120
    _token: str | None = field(default=None, repr=False)

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Send one request below /api/v2 and return the decoded JSON. Raises ApiError, or OSError when unreachable."""
        if query:
            path += "?" + urllib.parse.urlencode(query, doseq=True)
        if self._token is None:
            self._token = self._log_in()
        try:
            return self._send(method, f"/api/v2{path}", body)
        except ApiError as error:
            if error.status != 401:
                raise
            # A token outlives neither a restart of the server nor a day.
            self._token = self._log_in()
            return self._send(method, f"/api/v2{path}", body)

    def _log_in(self) -> str:
        answer = self._send("POST", "/auth/token", {"username": self.username, "password": self.password})
        return str(answer["access_token"])

    def _send(self, method: str, path: str, body: Any) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as answer:  # noqa: S310
                content = answer.read()
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, error.read().decode(errors="replace")[:2000]) from None
        except TimeoutError:
            raise TimeoutError(f"Airflow did not answer {method} {path} within {self.timeout_s:g} s") from None
        return json.loads(content) if content else None

    def health(self) -> dict[str, Any]:
        """Status of each part of the installation, by name."""
        return dict(self.call("GET", "/monitor/health"))

    def import_errors(self) -> list[dict[str, Any]]:
        """DAG files that could not be read, with their tracebacks."""
        return list(self.call("GET", "/importErrors")["import_errors"])

    def set_pool(self, name: str, slots: int, description: str) -> None:
        """Create the pool, or give it this size."""
        pool = {"slots": slots, "description": description, "include_deferred": False}
        try:
            self.call("POST", "/pools", {"name": name} | pool)
        except ApiError as error:
            if error.status != 409:
                raise
            self.call("PATCH", f"/pools/{name}", {"pool": name} | pool)

    def has_dag(self, dag_id: str) -> bool:
        """Whether the DAG was read and has no import error."""
        try:
            dag = self.call("GET", f"/dags/{dag_id}")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return not dag["has_import_errors"] and not dag["is_stale"]

    def pause(self, dag_id: str, paused: bool) -> None:
        self.call("PATCH", f"/dags/{dag_id}", {"is_paused": paused}, update_mask="is_paused")

    def trigger(self, dag_id: str, conf: dict[str, Any], logical_date: str | None = None) -> str:
        """Start one run by hand; returns its id."""
        body = {"conf": conf, "logical_date": logical_date}
        return str(self.call("POST", f"/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def backfill(self, dag_id: str, first: str, last: str, reprocess: str, max_active_runs: int = 1) -> int:
        """Start runs for the nights of YYYY-MM-DD `first` to `last`, both included; returns the backfill's id.

        `reprocess` says what happens to nights that have a run: none, failed or completed (see Airflow's backfills).
        """
        body = {
            "dag_id": dag_id,
            "from_date": f"{first}T00:00:00Z",
            "to_date": f"{last}T23:59:59Z",
            "reprocess_behavior": reprocess,
            "max_active_runs": max_active_runs,
            "run_backwards": False,
            "dag_run_conf": {},
        }
        return int(self.call("POST", "/backfills", body)["id"])

    def open_backfill(self, dag_id: str) -> int | None:
        """The backfill that the DAG has in progress; Airflow allows one at a time."""
        known = self.call("GET", "/backfills", dag_id=dag_id, limit=100)["backfills"]
        return next((int(each["id"]) for each in known if each["completed_at"] is None), None)

    def cancel_backfill(self, backfill_id: int) -> None:
        """Close a backfill; runs of it that wait fail, runs that ended stay as they are."""
        self.call("PUT", f"/backfills/{backfill_id}/cancel")

    def backfill_done(self, backfill_id: int) -> bool:
        """Whether Airflow closed the backfill (all its runs have ended)."""
        return self.call("GET", f"/backfills/{backfill_id}")["completed_at"] is not None

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """The newest 100 runs of a DAG, oldest logical date first (runs without one last)."""
        runs = self.call("GET", f"/dags/{dag_id}/dagRuns", limit=100, order_by="-run_after")["dag_runs"]
        return sorted(runs, key=lambda run: run["logical_date"] or "9")

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        return dict(self.call("GET", f"/dags/{dag_id}/dagRuns/{urllib.parse.quote(run_id, safe='')}"))

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Every task of a run, mapped ones once per index."""
        path = f"/dags/{dag_id}/dagRuns/{urllib.parse.quote(run_id, safe='')}/taskInstances"
        return list(self.call("GET", path, limit=1000)["task_instances"])

    def xcom(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> Any:
        """What a task returned."""
        run = urllib.parse.quote(run_id, safe="")
        path = f"/dags/{dag_id}/dagRuns/{run}/taskInstances/{task_id}/xcomEntries/return_value"
        return self.call("GET", path, map_index=map_index, deserialize="true")["value"]

    def log_lines(self, task: dict[str, Any]) -> list[str]:
        """The log of the last try of one task instance, as plain lines."""
        run = urllib.parse.quote(task["dag_run_id"], safe="")
        path = f"/dags/{task['dag_id']}/dagRuns/{run}/taskInstances/{task['task_id']}/logs/{max(task['try_number'], 1)}"
        content = self.call("GET", path, map_index=task["map_index"], full_content="true")["content"]
        return [line["event"] if isinstance(line, dict) else str(line) for line in content]

    def clear(self, dag_id: str, run_id: str, task_ids: list[Any]) -> None:
        """Run tasks again; an element is a task's name, or [name, map index]."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": task_ids,
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self.call("POST", f"/dags/{dag_id}/clearTaskInstances", body)

    def asset_events(self, name: str) -> list[dict[str, Any]]:
        """Events of the asset of this name, newest first."""
        events = self.call("GET", "/assets/events", order_by="-timestamp", limit=100, name_pattern=name)
        return list(events["asset_events"])
