"""Mistakes that people make: each ends with its exit code, one clear message, and nothing published."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo.servers.seaweed import S3Endpoint
from jobs import DS, JobHome, make_home, published, put_rows, rows
from pipeline.objects import Objects


def refused(home: JobHome, code: int, *expected: str, command: tuple[str, ...] = (), **environment: str) -> str:
    """Run the job; it must exit with `code`, say each expected text, show no traceback and publish nothing."""
    arguments = command or ("run", str(home.file), "--ds", DS)
    done = home.command(*arguments, **environment)
    assert done.returncode == code, done.stderr
    for text in expected:
        assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert not (home.folder / "out/predictions").exists()
    return done.stderr


@pytest.fixture
def home(tmp_path: Path, tiny_model: Path) -> JobHome:
    put_rows(Objects().put, str(tmp_path), rows(10))
    return make_home(tmp_path, tiny_model, str(tmp_path))


def test_unknown_job_key(tmp_path: Path, tiny_model: Path) -> None:
    home = make_home(tmp_path, tiny_model, str(tmp_path), colour="red")
    refused(home, 2, f"{home.file}: colour: unknown key; valid keys here: name, description")


def test_missing_job_file(home: JobHome) -> None:
    refused(home, 2, "cannot be read", command=("run", "no/such.yaml", "--ds", DS))


@pytest.mark.parametrize("ds", ["yesterday", "2026-13-01", "20261130", "2026-11-30T00:00"])
def test_a_date_that_is_none(home: JobHome, ds: str) -> None:
    refused(home, 2, "is not a date; write YYYY-MM-DD", command=("run", str(home.file), "--ds", ds))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"text": "review"}, "no column 'review'; it has: id, text, group"),
        ({"id": "key"}, "no column 'key'"),
        ({"keep": {"stars": "int64"}}, "no column 'stars'"),
    ],
)
def test_missing_column(tmp_path: Path, tiny_model: Path, fields: dict[str, Any], expected: str) -> None:
    home = make_home(tmp_path, tiny_model, str(tmp_path), input=fields)
    path = tmp_path / f"in/ds={DS}/rows.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows(5)), path)
    refused(home, 2, str(path), expected)


def test_missing_json_key_breaks_the_budget(tmp_path: Path, tiny_model: Path) -> None:
    home = make_home(tmp_path, tiny_model, str(tmp_path), input={"text": "review"})
    put_rows(Objects().put, str(tmp_path), rows(5))
    refused(home, 3, "5 of 5 rows were rejected", "missing_column")


@pytest.mark.parametrize(
    ("model", "expected"),
    [("./nowhere", "there is no folder"), ("./empty", "config.json"), ("s3://lake/none", "no model files under")],
)
def test_missing_model(tmp_path: Path, s3: S3Endpoint, model: str, expected: str) -> None:
    (tmp_path / "empty").mkdir()
    put_rows(Objects().put, str(tmp_path), rows(5))
    uri = model.replace("lake", s3.bucket)
    refused(make_home(tmp_path, uri, str(tmp_path)), 2, "model.uri", expected)


def test_max_length_beyond_the_models_positions(tmp_path: Path, tiny_model: Path) -> None:
    put_rows(Objects().put, str(tmp_path), rows(5))
    home = make_home(tmp_path, tiny_model, str(tmp_path), max_length=512, shapes="auto")
    refused(home, 2, "max_length: 512 exceeds the 128 positions")


def test_a_damaged_parquet_file(home: JobHome) -> None:
    path = home.folder / f"in/ds={DS}/rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows(50)), path)
    path.write_bytes(path.read_bytes()[:-20])
    refused(home, 2, str(path), "not a readable Parquet file")


def test_an_unknown_extension(home: JobHome) -> None:
    (home.folder / f"in/ds={DS}/rows.xlsx").write_bytes(b"x")
    refused(home, 2, "rows.xlsx", "no known extension")


def test_no_input_objects(tmp_path: Path, tiny_model: Path) -> None:
    home = make_home(tmp_path, tiny_model, str(tmp_path))
    refused(home, 2, f"no input objects for ds={DS}", "when_missing: empty")


def s3_home(folder: Path, model: Path, s3: S3Endpoint, bucket: str | None = None) -> JobHome:
    return make_home(folder, model, f"s3://{bucket or s3.bucket}/job")


def test_unreachable_s3(tmp_path: Path, tiny_model: Path, s3: S3Endpoint) -> None:
    with socket.socket() as taken:  # bound but not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        started = time.monotonic()
        refused(s3_home(tmp_path, tiny_model, s3), 5, "did not answer", url, "AWS_ENDPOINT_URL", AWS_ENDPOINT_URL=url)
        assert time.monotonic() - started < 60


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials(tmp_path: Path, tiny_model: Path, s3: S3Endpoint, name: str) -> None:
    refused(s3_home(tmp_path, tiny_model, s3), 5, "check", name, **{name: "wrong"})


def test_no_credentials(tmp_path: Path, tiny_model: Path, s3: S3Endpoint) -> None:
    home = s3_home(tmp_path, tiny_model, s3)
    refused(home, 5, "no AWS credentials", AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")


def test_missing_bucket(tmp_path: Path, tiny_model: Path, s3: S3Endpoint) -> None:
    refused(s3_home(tmp_path, tiny_model, s3, "no-such-bucket"), 5, "no such bucket")


def test_read_only_output(home: JobHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere, so the output lies below a file: no folder can be made there."""
    blocked = home.folder / "blocked"
    blocked.write_text("a file")
    other = make_home(
        home.folder, Path(home.context().job.model.uri), str(home.folder), output={"uri": f"{blocked}/out"}
    )
    refused(other, 5, str(blocked), "check the path")


def test_never_compile_without_artifacts_fails_before_anything_is_read(tmp_path: Path, tiny_model: Path) -> None:
    home = make_home(tmp_path, tiny_model, str(tmp_path), artifacts=f"{tmp_path}/none")
    put_rows(Objects().put, str(tmp_path), rows(10))
    run = ("run", str(home.file), "--ds", DS, "--no-compile")
    errors = refused(home, 4, "16x16", "2x128", "does not exist", "lengthwise compile", command=run)
    assert "snapshot:" not in errors
    planned = make_home(tmp_path, tiny_model, str(tmp_path), artifacts=f"{tmp_path}/none", shapes="auto")
    refused(planned, 4, "no frozen shape plan", "lengthwise compile", command=run)


def test_an_explicit_compile_builds_for_a_job_that_may_not_and_mends_a_damaged_blob(
    tmp_path: Path, tiny_model: Path
) -> None:
    store = f"{tmp_path}/artifacts"
    home = make_home(tmp_path, tiny_model, str(tmp_path), artifacts=store, compile="never", shapes=["4x64", "2x128"])
    put_rows(Objects().put, str(tmp_path), rows(40))
    refused(home, 4, "4x64", "2x128")
    built = home.command("compile", str(home.file), "--ds", DS, "--json")
    assert json.loads(built.stdout) == {"built": 2, "reused": 0}, built.stderr
    blob = max((tmp_path / "artifacts/blobs").iterdir(), key=lambda path: path.stat().st_size)
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    refused(home, 4, "damaged", LENGTHWISE_CACHE=f"{tmp_path}/another-cache")
    mended = home.command("compile", str(home.file), "--ds", DS, "--json")
    assert json.loads(mended.stdout)["built"] > 0, mended.stderr
    done = home.command("run", str(home.file), "--ds", DS, LENGTHWISE_CACHE=f"{tmp_path}/another-cache")
    assert done.returncode == 0, done.stderr


def test_a_published_night_is_not_replaced_by_nothing(tmp_path: Path, tiny_model: Path) -> None:
    home = make_home(tmp_path, tiny_model, str(tmp_path), input={"when_missing": "empty"})
    put_rows(Objects().put, str(tmp_path), rows(10))
    home.run()
    before = published(Objects(), str(tmp_path))
    for path in (tmp_path / f"in/ds={DS}").iterdir():
        path.unlink()
    done = home.command("run", str(home.file), "--ds", DS)
    assert done.returncode == 2
    assert "is published with 10 rows; nothing was changed" in done.stderr
    assert published(Objects(), str(tmp_path)) == before
    assert home.run("--fresh")["rows"] == 0


def test_output_within_the_input(tmp_path: Path, tiny_model: Path) -> None:
    home = make_home(tmp_path, tiny_model, str(tmp_path), input={"uri": f"{tmp_path}/"})
    refused(home, 2, "lies within input.uri")


def test_a_picture_that_cannot_be_written(home: JobHome) -> None:
    for picture in ("nowhere/plan.svg", "plan.png"):
        command = ("plan", str(home.file), "--ds", DS, "--picture", str(home.folder / picture))
        assert "tokenize:" not in refused(home, 2, "--picture", command=command)


def test_never_compile_with_one_artifact_gone_leaves_the_old_partition(tmp_path: Path, tiny_model: Path) -> None:
    home = make_home(tmp_path, tiny_model, str(tmp_path), artifacts=f"{tmp_path}/artifacts", shapes=["8x32", "2x128"])
    put_rows(Objects().put, str(tmp_path), rows(40))
    home.run()
    before = published(Objects(), str(tmp_path))
    put_rows(Objects().put, str(tmp_path), rows(40, seed=1))  # another snapshot: there would be work to do
    listed = json.loads(home.command("artifacts", "list", str(home.file), "--json").stdout)["artifacts"]
    gone = next(item for item in listed if item["spec"]["shape"] == "8x32")
    (tmp_path / f"artifacts/manifests/{gone['key']}.json").unlink()
    done = home.command("run", str(home.file), "--ds", DS, "--no-compile")
    assert done.returncode == 4
    assert f"shape 8x32: artifact {gone['key']}" in done.stderr
    assert f"lengthwise compile JOB --ds {DS}" in done.stderr
    assert "snapshot:" not in done.stderr, "nothing was listed, let alone read"
    assert published(Objects(), str(tmp_path)) == before
    home.command("compile", str(home.file), "--ds", DS)
    assert home.run("--no-compile")["compilations_in_infer"] == 0
    assert published(Objects(), str(tmp_path)) != before


def test_artifacts_are_listed_verified_and_collected(tmp_path: Path, tiny_model: Path) -> None:
    home = make_home(tmp_path, tiny_model, str(tmp_path), artifacts=f"{tmp_path}/artifacts", shapes=["8x32", "2x128"])
    put_rows(Objects().put, str(tmp_path), rows(40))
    home.run()
    keys = [
        item["key"]
        for item in json.loads(home.command("artifacts", "list", str(home.file), "--json").stdout)["artifacts"]
    ]
    assert len(keys) == 2
    assert json.loads(home.command("artifacts", "show", str(home.file), keys[0][:8]).stdout)["parity"]["passed"]
    assert "2 artifacts are sound" in home.command("artifacts", "verify", str(home.file)).stdout
    fewer = make_home(tmp_path, tiny_model, str(tmp_path), artifacts=f"{tmp_path}/artifacts", shapes=["2x128"])
    fewer.run()
    assert "1 artifacts would be deleted" in fewer.command("artifacts", "gc", str(fewer.file)).stdout
    assert "1 artifacts deleted, 1 kept" in fewer.command("artifacts", "gc", str(fewer.file), "--yes").stdout
    assert "1 artifacts are sound" in fewer.command("artifacts", "verify", str(fewer.file)).stdout
    blob = max((tmp_path / "artifacts/blobs").iterdir(), key=lambda path: path.stat().st_size)
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    damaged = fewer.command("artifacts", "verify", str(fewer.file))
    assert damaged.returncode == 4
    assert "damaged" in damaged.stderr


def test_report_of_an_unpublished_night(home: JobHome) -> None:
    refused(home, 2, "was not published yet", command=("report", str(home.file), "--ds", DS))


def test_validate_and_doctor(home: JobHome) -> None:
    valid = home.command("validate", str(home.file), "--json")
    assert valid.returncode == 0
    assert json.loads(valid.stdout)["shapes"] == ["16x16", "8x32", "4x64", "2x128"]
    found = json.loads(home.command("doctor", "--json").stdout)
    assert {target["name"] for target in found["targets"]} >= {"openvino", "torch"}
    assert found["machine"]["cores"]
    assert home.command("no-such-command").returncode == 2
    assert "Exit codes" in home.command("--help").stdout
