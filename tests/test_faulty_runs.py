"""Whole runs while the store fails, dies or changes under them: the same bytes, or a clean error and then the same."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from s3_proxy import Chooser, Request, faulty_s3

from demo.servers.process import free_ports
from demo.servers.seaweed import S3Endpoint, local_s3
from jobs import DS, JobHome, jsonl, make_home, published, put_rows, rows, share_shape_plan
from pipeline import steps
from pipeline.errors import StorageError
from pipeline.objects import Objects

PASSING = ("500", "503", "refused", "lost", "reset", "truncated")


def at_random(seed: int, rate: float) -> Chooser:
    """Each request fails with that probability; a conditional write may also hear of a conflict or of itself."""
    rng = random.Random(seed)

    def choose(request: Request) -> str | None:
        kinds = {"put_new": (*PASSING, "409", "412"), "copy": (*PASSING, "200 with an error")}
        return rng.choice(kinds.get(request.operation, PASSING)) if rng.random() < rate else None

    return choose


def run_until_done(home: JobHome, attempts: int, **environment: str) -> list[int]:
    """Exit codes up to the first 0; every failure must be one that a user can act on."""
    codes = []
    for _ in range(attempts):
        done = home.command("run", str(home.file), "--ds", DS, **environment)
        codes.append(done.returncode)
        if done.returncode == 0:
            return codes
        assert done.returncode in (5, 6), done.stderr
        assert "error: " in done.stderr
        assert "Traceback" not in done.stderr, done.stderr
    raise AssertionError(f"not finished after {codes}: {done.stderr}")


def on_s3(folder: Path, model: Path, bucket: str, out: str) -> JobHome:
    root = f"s3://{bucket}/job"
    return make_home(folder / out, model, root, workers=2, output={"uri": f"{root}/{out}/out"})


def tables(bucket: str, out: str) -> dict[str, bytes]:
    root = f"s3://{bucket}/job/{out}"
    return {uri.removeprefix(root): data for uri, data in published(Objects(), root).items()}


@pytest.mark.parametrize(
    ("seed", "rate"),
    [(1, 0.06), *(pytest.param(seed, 0.02 * seed, marks=pytest.mark.slow) for seed in range(2, 8))],
)
def test_a_run_through_a_failing_store_ends_with_the_same_bytes(
    tmp_path: Path, tiny_model: Path, s3: S3Endpoint, seed: int, rate: float
) -> None:
    put_rows(Objects().put, f"s3://{s3.bucket}/job", rows(60))
    on_s3(tmp_path, tiny_model, s3.bucket, "calm").run()
    home = on_s3(tmp_path, tiny_model, s3.bucket, "rough")
    share_shape_plan(Objects(), f"s3://{s3.bucket}/job/calm/out", f"s3://{s3.bucket}/job/rough/out")
    with faulty_s3(s3, at_random(seed, rate)) as (endpoint, met):
        codes = run_until_done(home, 6, AWS_ENDPOINT_URL=endpoint.url)
    assert met.total() >= 5, "the store did fail"
    assert tables(s3.bucket, "rough") == tables(s3.bucket, "calm"), codes


def test_a_store_that_refuses_all_writes_is_a_clean_error_and_the_run_continues(
    tmp_path: Path, tiny_model: Path, s3: S3Endpoint
) -> None:
    """Down from the first shard result on: workers and coordinator give up; what is finished is found again."""
    put_rows(Objects().put, f"s3://{s3.bucket}/job", rows(60))
    home = on_s3(tmp_path, tiny_model, s3.bucket, "out")
    with faulty_s3(s3, lambda request: "503" if "/shards/" in request.path else None) as (endpoint, _):
        done = home.command("run", str(home.file), "--ds", DS, AWS_ENDPOINT_URL=endpoint.url)
    assert done.returncode == 5, done.stderr
    assert "throttles; finished work is kept, run again" in done.stderr
    assert "Traceback" not in done.stderr
    assert home.run()["predicted"] == 60


@contextlib.contextmanager
def mortal_s3(folder: Path, port: int) -> Iterator[tuple[S3Endpoint, Callable[[], None]]]:
    """A server on a fixed port, and what kills it with -9."""
    with local_s3(folder / "data", port=port) as endpoint:

        def kill() -> None:
            for process in psutil.Process().children(recursive=True):
                if "weed" in process.name() and any(f"-s3.port={port}" in part for part in process.cmdline()):
                    process.kill()
                    process.wait(30)

        yield endpoint, kill


def test_a_killed_s3_server_comes_back_and_the_run_ends_with_the_same_bytes(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    with mortal_s3(tmp_path, port) as (endpoint, kill):
        for name, value in endpoint.environment().items():
            monkeypatch.setenv(name, value)
        put_rows(Objects().put, f"s3://{endpoint.bucket}/job", rows(60))
        on_s3(tmp_path, tiny_model, endpoint.bucket, "calm").run()
        calm = tables(endpoint.bucket, "calm")
        home = on_s3(tmp_path, tiny_model, endpoint.bucket, "rough")
        share_shape_plan(Objects(), f"s3://{endpoint.bucket}/job/calm/out", f"s3://{endpoint.bucket}/job/rough/out")
        process = home.start("run", str(home.file), "--ds", DS)
        results = f"s3://{endpoint.bucket}/job/rough/out/_lengthwise/runs/ds={DS}/"
        deadline = time.monotonic() + 120
        while not any("/shards/" in uri for uri in Objects().list(results)):
            assert process.poll() is None
            assert time.monotonic() < deadline
        kill()
    with mortal_s3(tmp_path, port) as (endpoint, _):
        _, errors = process.communicate(timeout=480)
        assert process.returncode in (0, 5, 6), errors
        assert "Traceback" not in errors
        run_until_done(home, 1)
        assert tables(endpoint.bucket, "rough") == calm


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path)
    endpoint: S3Endpoint = request.getfixturevalue("s3")
    return f"s3://{endpoint.bucket}/job"


@pytest.mark.parametrize("what", ["changed", "is gone"])
def test_an_input_that_changes_or_goes_between_steps(tmp_path: Path, tiny_model: Path, store: str, what: str) -> None:
    objects = Objects()
    put_rows(objects.put, store, rows(30))
    home = make_home(tmp_path, tiny_model, store)
    taken = steps.snapshot(home.context())
    victim = f"{store}/in/ds={DS}/part-1.jsonl"
    objects.put(victim, jsonl(rows(7, seed=5))) if what == "changed" else objects.delete(victim)
    with pytest.raises(StorageError, match=f"part-1.jsonl {what} since the run pinned it; run again to take a new"):
        steps.tokenize(home.context(), taken["snapshot"])
    again = steps.snapshot(home.context())
    assert again["snapshot"] != taken["snapshot"]
    found = steps.tokenize(home.context(), again["snapshot"])
    assert found["rows"] == (22 if what == "changed" else 15)


def test_an_input_that_goes_is_exit_code_5(tmp_path: Path, tiny_model: Path) -> None:
    put_rows(Objects().put, str(tmp_path), rows(30))
    home = make_home(tmp_path, tiny_model, str(tmp_path))
    taken = steps.snapshot(home.context())
    Objects().delete(f"{tmp_path}/in/ds={DS}/part-1.jsonl")
    done = home.command("step", "tokenize", "--job", str(home.file), "--ds", DS, "--snapshot", taken["snapshot"])
    assert done.returncode == 5, done.stderr
    assert "is gone since the run pinned it; run again to take a new snapshot" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_input_that_changes_after_tokenising_changes_nothing_of_the_run(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row is read once. The next run sees the new input, under another fingerprint."""
    monkeypatch.setenv("LENGTHWISE_LOCK_DIR", str(tmp_path / "locks"))
    objects = Objects()
    put_rows(objects.put, str(tmp_path), rows(30))
    home = make_home(tmp_path, tiny_model, str(tmp_path), workers=1)
    context = home.context()
    taken = steps.snapshot(context)
    steps.tokenize(context, taken["snapshot"])
    planned = steps.plan(context, taken["snapshot"])
    objects.put(f"{tmp_path}/in/ds={DS}/part-1.jsonl", jsonl(rows(7, seed=5)))
    steps.compile_artifacts(context, planned["run"])
    steps.infer(context, planned["run"])
    steps.publish(context, planned["run"])
    assert steps.commit(context, planned["run"])["rows"] == 30
    taken = steps.snapshot(context)
    assert steps.tokenize(context, taken["snapshot"])["rows"] == 22
    assert steps.plan(context, taken["snapshot"])["fingerprint"] != planned["fingerprint"]
