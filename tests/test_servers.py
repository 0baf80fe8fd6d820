"""The local servers: ready when yielded, private, safe under conditional writes, and never outliving their owner."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from botocore.exceptions import ClientError

from demo.servers.postgres import local_postgres
from demo.servers.process import ServerError, free_ports, kept, tail, wait_ready
from demo.servers.seaweed import S3Endpoint, local_s3

ROOT = Path(__file__).parents[1]
# A server that ignores polite signals, with a daemon that left the session: the hardest thing to stop.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(os.getpid(), daemon.pid, flush=True)
time.sleep(600)
"""


def wait_until(condition: Callable[[], bool], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def status_of(call: Callable[[], object]) -> int:
    with pytest.raises(ClientError) as error:
        call()
    return int(error.value.response["ResponseMetadata"]["HTTPStatusCode"])


def test_objects_round_trip_and_are_created_once(s3: S3Endpoint) -> None:
    client = s3.client()
    client.put_object(Bucket=s3.bucket, Key="a/b", Body=b"one", IfNoneMatch="*")
    again = status_of(lambda: client.put_object(Bucket=s3.bucket, Key="a/b", Body=b"two", IfNoneMatch="*"))
    assert again == 412
    assert client.get_object(Bucket=s3.bucket, Key="a/b")["Body"].read() == b"one"


def test_one_of_many_racing_writers_wins(s3: S3Endpoint) -> None:
    def write(number: int) -> bool:
        try:
            s3.client().put_object(Bucket=s3.bucket, Key="race", Body=str(number).encode(), IfNoneMatch="*")
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] not in (409, 412):
                raise
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(write, range(8)))
    assert won.count(True) == 1
    assert s3.client().get_object(Bucket=s3.bucket, Key="race")["Body"].read() == str(won.index(True)).encode()


def test_wrong_keys_are_refused(s3: S3Endpoint) -> None:
    stranger = replace(s3, secret_key="wrong").client()
    assert status_of(lambda: stranger.list_objects_v2(Bucket=s3.bucket)) == 403


def test_the_environment_is_what_boto3_reads(s3: S3Endpoint) -> None:
    code = "import boto3; print([b['Name'] for b in boto3.client('s3').list_buckets()['Buckets']])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert s3.bucket in out.stdout


def test_it_listens_on_loopback_only(s3_server: S3Endpoint) -> None:
    port = int(s3_server.url.rsplit(":", 1)[1])
    mine = psutil.Process().children(recursive=True)
    server = next(p for p in mine if any(c.laddr.port == port for c in p.net_connections() if c.status == "LISTEN"))
    assert {c.laddr.ip for c in server.net_connections() if c.status == "LISTEN"} == {"127.0.0.1"}


def test_data_survives_a_restart_on_the_same_folder(tmp_path: Path) -> None:
    with local_s3(tmp_path / "data") as first:
        first.client().put_object(Bucket=first.bucket, Key="kept", Body=b"bytes")
    with local_s3(tmp_path / "data") as second:
        assert second.client().get_object(Bucket=second.bucket, Key="kept")["Body"].read() == b"bytes"


def test_s3_server_dies_with_an_owner_killed_by_9(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib; from demo.servers.seaweed import local_s3\n"
        "with local_s3(pathlib.Path(sys.argv[1])) as s: print(s.url, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "data")], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert owner.stdout is not None
    with owner, owner.stdout:
        assert owner.stdout.readline().startswith("http://127.0.0.1:")
        started = psutil.Process(owner.pid).children(recursive=True)
        assert any("weed" in process.name() for process in started)
        owner.kill()
    wait_until(lambda: not any(process.is_running() for process in started))


@pytest.mark.parametrize("end", ["block", "SIGTERM to keeper"])
def test_a_stubborn_server_and_its_daemon_end(tmp_path: Path, end: str) -> None:
    log = tmp_path / "log"
    with kept([sys.executable, "-c", STUBBORN], log, grace_s=0.5) as process:
        wait_ready(process, "stubborn", log, lambda: len(tail(log).split()) == 2, timeout_s=30)
        started = [psutil.Process(int(pid)) for pid in tail(log).split()]
        if end != "block":
            os.kill(process.pid, signal.SIGTERM)
            process.wait(30)
    assert not any(process.is_running() for process in started)


def test_a_server_that_fails_says_so_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    argv = [sys.executable, "-c", "raise SystemExit('port is taken')"]
    with pytest.raises(ServerError, match=r"(?s)status 1.*port is taken"), kept(argv, log) as process:
        wait_ready(process, "bad", log, lambda: False, timeout_s=30)


def test_a_server_that_hangs_is_given_up_and_stopped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(ServerError, match=r"not ready within 0.1 s"), kept(argv, log) as process:
        wait_ready(process, "slow", log, lambda: False, timeout_s=0.1)
    assert process.poll() is not None


def test_postgres_keeps_its_data_and_only_its_owner_reaches_it(tmp_path: Path) -> None:
    with local_postgres(tmp_path / "pg") as first, first.connect() as connection:
        connection.execute("CREATE TABLE kept (value int)")
        connection.execute("INSERT INTO kept VALUES (7)")
    with local_postgres(tmp_path / "pg") as second:
        with second.connect() as connection:
            assert connection.execute("SELECT value FROM kept").fetchall() == [(7,)]
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        (socket_file,) = [path for path in second.socket_dir.iterdir() if path.is_socket()]
        assert stat.S_IMODE(socket_file.stat().st_mode) == 0o700


def test_postgres_works_where_the_folder_is_too_deep_for_a_socket(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a" * 40] * 3)
    with local_postgres(deep / "pg", "other") as endpoint, endpoint.connect() as connection:
        assert connection.execute("SELECT current_database()").fetchone() == ("other",)
        socket_dir = endpoint.socket_dir
    assert not socket_dir.exists()


def test_postgres_dies_with_an_owner_killed_by_9_and_starts_again(tmp_path: Path) -> None:
    """Its processes leave the session that they are started in; the keeper finds them all the same."""
    code = (
        "import sys, time, pathlib; from demo.servers.postgres import local_postgres\n"
        "with local_postgres(pathlib.Path(sys.argv[1])) as s: print(s.url, flush=True); time.sleep(600)"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "pg")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline().startswith("postgresql+psycopg2://")
        started = psutil.Process(owner.pid).children(recursive=True)
        assert any("postgres" in process.name() for process in started)
        owner.kill()
    wait_until(lambda: not any(process.is_running() for process in started))
    with local_postgres(tmp_path / "pg") as again, again.connect() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_free_ports_are_distinct() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
