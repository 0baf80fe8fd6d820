"""`make demo` and `make airflow`: the whole product on this machine, from an empty folder to an answer in SQL."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NoReturn

from demo.airflow_client import AirflowClient
from demo.progress import Progress, RunFailedError, night_of
from demo.servers.airflow import AirflowEndpoint, local_airflow
from demo.servers.postgres import local_postgres
from demo.servers.process import ServerError, free_ports, tail
from demo.servers.seaweed import S3Endpoint, local_s3
from demo.shows import ROOT, SENTIMENT, Show, find_show

S3_FOLDER = "s3"
_RUNS_TIMEOUT_S = 1800


class DemoError(Exception):
    """Something that the demo started failed; the message says what, with the end of its output."""


@dataclass(slots=True)
class Teller:
    """Plain lines with the seconds since the start."""

    started: float = field(default_factory=time.monotonic)

    def __call__(self, text: str) -> None:
        sys.stdout.write(f"[{time.monotonic() - self.started:6.1f} s] {text}\n")
        sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class Stack:
    """What runs: S3, and Airflow with PostgreSQL behind it; `environment` reaches the S3."""

    s3: S3Endpoint
    airflow: AirflowEndpoint
    environment: Mapping[str, str]


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the folder: two servers over one server's data would destroy it. Raises DemoError when it is taken."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(f"another `make demo` or `make airflow` uses {folder}; end it first") from None
        yield


def preferred_port(port: int) -> int:
    """The port that people know, where it is free, else another."""
    with socket.socket() as probe:
        # As servers do it: connections of the run before that linger are no reason to move.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return free_ports(1)[0]
    return port


@contextlib.contextmanager
def running_stack(folder: Path, show: Show, say: Teller) -> Iterator[Stack]:
    """Start everything, with inputs in S3 and the shapes compiled; on exit all of it has ended."""
    again = " (with the data of the last run)" if (folder / S3_FOLDER).exists() else ""
    with local_s3(folder / S3_FOLDER, port=preferred_port(8333)) as s3:
        say(f"S3 (SeaweedFS) at {s3.url}{again}")
        environment = s3.environment() | {"LENGTHWISE_CACHE": str(folder / "cache")}
        show.prepare(s3, folder, say)
        say("compiling the planned shapes, and starting PostgreSQL and Airflow meanwhile")
        airflow_options: dict[str, Any] = {
            "environment": environment,
            "pools": {"cores": len(os.sched_getaffinity(0))},
            "port": preferred_port(8080),
        }
        with (
            compiling(show, folder / "compile.log", environment) as compile_process,
            local_postgres(folder / "pg") as postgres,
            local_airflow(folder / "airflow", postgres.url, ROOT / "dags", **airflow_options) as airflow,
        ):
            say(f"Airflow at {airflow.url}")
            wait_compiled(compile_process, folder / "compile.log", say)
            yield Stack(s3, airflow, environment)


def lengthwise(*arguments: str) -> list[str]:
    """The command line of our own program."""
    return [sys.executable, "-m", "pipeline", *arguments]


@contextlib.contextmanager
def compiling(show: Show, log: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """`lengthwise compile` of the first night, beside what the block does."""
    argv = lengthwise("compile", str(show.job), "--ds", show.nights[0])
    with log.open("wb") as output:
        process = subprocess.Popen(argv, env=os.environ | dict(environment), stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def wait_compiled(process: subprocess.Popen[bytes], log: Path, say: Teller) -> None:
    if process.wait() != 0:
        raise DemoError(f"lengthwise compile ended with exit code {process.returncode}\n{tail(log, 40)}")
    say(f"shapes: {tail(log, 1)}")


def wait_for_dag(client: AirflowClient, dag_id: str) -> None:
    """Raises DemoError when Airflow cannot read it."""
    deadline = time.monotonic() + 120
    while not client.has_dag(dag_id):
        errors = [error["stack_trace"] for error in client.import_errors()]
        if errors or time.monotonic() > deadline:
            raise DemoError("\n".join([f"Airflow does not show the DAG {dag_id}", *errors]))
        time.sleep(0.2)


def process(stack: Stack, show: Show, say: Teller) -> None:
    """Have Airflow process the show's nights. Raises RunFailedError."""
    client = stack.airflow.client()
    wait_for_dag(client, show.dag_id)
    (backfill if show.scheduled else trigger)(client, show, say)


def trigger(client: AirflowClient, show: Show, say: Teller) -> None:
    """Each night by hand, as a person would with a DAG that has no schedule."""
    client.pause(show.dag_id, paused=False)
    runs = [client.trigger(show.dag_id, {"partition_date": ds}) for ds in show.nights]
    say(f"{len(runs)} run of {show.dag_id} triggered by Airflow's API, for {', '.join(show.nights)}")
    Progress(client, show.dag_id, say).follow(lambda run: run["dag_run_id"] in runs, lambda: True, _RUNS_TIMEOUT_S)


def backfill(client: AirflowClient, show: Show, say: Teller) -> None:
    """All nights at once, as a person would who found them missing."""
    dag_id, nights = show.dag_id, show.nights
    known = client.runs(dag_id)
    ended = {run["dag_run_id"] for run in known if run["state"] in ("success", "failed")}
    # Unpaused, the DAG also gets the run of last night, which its schedule missed.
    client.pause(dag_id, paused=False)
    number = client.open_backfill(dag_id)
    if number is not None and all(run["dag_run_id"] in ended for run in known if night_of(run) in nights):
        # Airflow closes a backfill up to half a minute after its last run, and we did not wait for that.
        client.cancel_backfill(number)
        number = None
    if number is not None:
        say(f"backfill {number} goes on: the last `make demo` was ended before it was done")
    else:
        number = client.backfill(dag_id, nights[0], nights[-1], "completed", max_active_runs=3)
        done_before = {night_of(run) for run in known} & set(nights)
        what = ": they were done before; finished work is found, not repeated" if done_before else ""
        say(f"backfill {number} of {nights[0]} to {nights[-1]} created by Airflow's API{what}")

    def wanted(run: dict[str, Any]) -> bool:
        missed = run["run_type"] == "scheduled" and run["dag_run_id"] not in ended
        return night_of(run) in nights or missed

    Progress(client, dag_id, say).follow(wanted, lambda: True, _RUNS_TIMEOUT_S)


def show_reports(stack: Stack, show: Show, say: Teller) -> None:
    for ds in show.nights:
        say(f"report of {ds}: lengthwise report jobs/{show.job.name} --ds {ds}")
        argv = lengthwise("report", str(show.job), "--ds", ds)
        env = os.environ | dict(stack.environment)
        shown = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120)
        if shown.returncode != 0:
            raise DemoError(f"lengthwise report ended with exit code {shown.returncode}\n{shown.stderr}")
        sys.stdout.write(shown.stdout)


def show_answer(stack: Stack, show: Show, say: Teller) -> None:
    say("what DuckDB says over the published Parquet:")
    found = show.answer(stack.s3)
    sys.stdout.write("\n")
    if found != [*show.nights]:
        raise DemoError("not every night was found in the published tables")


WHERE_NEXT = """Where to look next
  make airflow                 the same servers, left running: see the runs, clear a task, backfill a night by hand
  jobs/{job}  the job that ran; copy it under another name, and the copy is a DAG too
  {folder}/                       what the servers keep; `make clean` removes it
"""


def run_demo(folder: Path, show: Show, say: Teller) -> None:
    with running_stack(folder, show, say) as stack:
        process(stack, show, say)
        show_reports(stack, show, say)
        show_answer(stack, show, say)
    say("all servers are stopped")
    sys.stdout.write("\n" + WHERE_NEXT.format(job=show.job.name, folder=os.path.relpath(folder)))


def serve(folder: Path, show: Show, say: Teller) -> None:
    """Leave the stack running until Ctrl-C."""
    with running_stack(folder, show, say) as stack:
        keys = " ".join(f"{name}={value}" for name, value in stack.s3.environment().items())
        sys.stdout.write(
            f"\n  Airflow   {stack.airflow.url}\n  login     {stack.airflow.username} / {stack.airflow.password}\n"
            f"  S3        {stack.s3.url}, bucket {stack.s3.bucket}\n"
            f"  shell     export {keys}\n\nCtrl-C stops all of it.\n"
        )
        sys.stdout.flush()
        while True:
            signal.pause()


def _terminated(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def main() -> int:
    """0 done, 1 something failed (said on stderr), 130 interrupted. In every case nothing is left running."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--serve", action="store_true", help="leave the servers running until Ctrl-C")
    parser.add_argument("--folder", type=Path, default=ROOT / ".demo", help="what the servers keep (default .demo)")
    parser.add_argument("--job", default=str(SENTIMENT.job), help="the job file to show (default: the sentiment job)")
    args = parser.parse_args()
    say = Teller()
    # A polite kill unwinds like an error does: servers are stopped in order.
    signal.signal(signal.SIGTERM, _terminated)
    try:
        show = find_show(args.job)
        if date.today() <= date.fromisoformat(show.nights[-1]):
            raise DemoError(f"the clock says {date.today()}: Airflow backfills only the past, after {show.nights[-1]}")
        with only_one(args.folder):
            (serve if args.serve else run_demo)(args.folder.resolve(), show, say)
    except KeyboardInterrupt:
        say("stopped; what is finished is kept in " + os.path.relpath(args.folder))
        return 0 if args.serve else 130
    except (DemoError, RunFailedError, ServerError, TimeoutError, FileNotFoundError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
