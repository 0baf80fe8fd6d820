"""The whole flow as a user runs it: real processes, a real S3 server, real runtimes over tiny models."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extensions
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from demo.servers.seaweed import S3Endpoint
from jobs import DS, JobHome, jsonl, make_home, published, put_rows, rows
from pipeline.columns import prediction_schema
from pipeline.objects import Objects
from pipeline.run_plan import load_run


def transformers_loop(model: Path, texts: list[str], max_length: int = 128) -> list[tuple[str, float, list[float]]]:
    """What a user would write: one text at a time, label, score and all scores."""
    import torch

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForSequenceClassification.from_pretrained(model).eval()
    found = []
    with torch.inference_mode():
        for text in texts:
            inputs = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
            scores = network(**inputs).logits.softmax(-1)[0].tolist()
            best = scores.index(max(scores))
            found.append((network.config.id2label[best], scores[best], scores))
    return found


@pytest.fixture
def local(tmp_path: Path, tiny_model: Path) -> JobHome:
    """300 good rows on local paths, a worker for each core."""
    home = make_home(tmp_path, tiny_model, str(tmp_path), workers="auto")
    put_rows(Objects().put, str(tmp_path), rows(300))
    return home


@pytest.mark.parametrize(
    ("target", "precision", "tolerance"),
    [("torch", "fp32", 1e-4), ("openvino", "fp32", 1e-4), ("openvino", "auto", 0.02)],
)
def test_predictions_equal_a_plain_transformers_loop(
    tmp_path: Path, tiny_model: Path, target: str, precision: str, tolerance: float
) -> None:
    home = make_home(
        tmp_path, tiny_model, str(tmp_path), target=target, precision=precision, output={"all_scores": True}
    )
    source = rows(120)
    put_rows(Objects().put, str(tmp_path), source)
    report = home.run()
    assert (report["rows"], report["predicted"], report["rejected"]) == (120, 120, 0)
    assert report["compilations_in_infer"] == 0
    output = pq.read_table(tmp_path / f"out/predictions/ds={DS}/part-00000.parquet").to_pylist()
    assert [row["row_id"] for row in output] == [row["id"] for row in source]
    assert [row["group"] for row in output] == [row["group"] for row in source]
    for row, (label, _, scores) in zip(output, transformers_loop(tiny_model, [r["text"] for r in source]), strict=True):
        assert row["scores"] == pytest.approx(scores, abs=tolerance)
        ordered = sorted(scores)
        if ordered[-1] - ordered[-2] > 2 * tolerance:
            assert row["label"] == label
        assert row["score"] == max(row["scores"])


def test_on_s3_every_reader_sees_the_declared_schema(tmp_path: Path, tiny_model: Path, s3: S3Endpoint) -> None:
    root = f"s3://{s3.bucket}/job"
    objects = Objects()
    model_uri = f"s3://{s3.bucket}/models/tiny"
    for path in tiny_model.iterdir():
        objects.put(f"{model_uri}/{path.name}", path.read_bytes())
    home = make_home(tmp_path, model_uri, root, input={"keep": {"group": "string", "n": "int32"}})
    put_rows(objects.put, root, [{**row, "n": index} for index, row in enumerate(rows(80))])
    report = home.run()
    assert report["predicted"] == 80
    part = f"{root}/out/predictions/ds={DS}/part-00000.parquet"
    path = tmp_path / "part.parquet"
    objects.download(part, path)

    expected = prediction_schema(home.context().job, ("label-0", "label-1", "label-2"), "single_label")
    schema = pq.read_schema(path)
    assert schema.equals(expected, check_metadata=False)
    assert "ds" not in schema.names
    assert pq.ParquetFile(path).metadata.metadata is None, "no Arrow schema, no pandas metadata inside"

    connection = duckdb.connect()
    duckdb_extensions.import_extension("httpfs")
    connection.sql("LOAD httpfs")
    connection.sql(
        f"CREATE SECRET (TYPE s3, KEY_ID '{s3.access_key}', SECRET '{s3.secret_key}', "
        f"ENDPOINT '{s3.url.removeprefix('http://')}', URL_STYLE 'path', USE_SSL false)"
    )
    source = f"read_parquet('{root}/out/predictions/*/*.parquet', hive_partitioning=true)"
    query = f"SELECT ds::VARCHAR, count(*), sum(n) FROM {source} GROUP BY 1"
    assert connection.sql(query).fetchall() == [(DS, 80, sum(range(80)))]
    assert pl.read_parquet(path).height == 80
    assert list(pd.read_parquet(path)["n"]) == list(range(80))
    metrics = connection.sql(f"SELECT job, rows, predicted FROM '{root}/out/metrics/*/*.parquet'").fetchall()
    assert metrics == [("tiny", 80, 80)]


def test_same_bytes_again_with_other_workers_and_in_pieces(local: JobHome) -> None:
    local.run()
    first = published(Objects(), str(local.folder))
    assert len(first) == 2
    before = {uri: os.stat(uri).st_mtime_ns for uri in first}
    assert local.run()["fingerprint"]
    assert {uri: os.stat(uri).st_mtime_ns for uri in first} == before, "a second run of a published night does nothing"
    for workers in ("1", "2", "4"):
        local.run("--fresh", "--workers", workers)
        assert published(Objects(), str(local.folder)) == first, workers


@pytest.mark.slow  # tests/test_chaos.py kills more, in every step
def test_killed_runs_resume_with_the_same_bytes(local: JobHome) -> None:
    local.run()
    first = published(Objects(), str(local.folder))
    local.command("run", str(local.file), "--ds", DS, "--fresh", "--no-compile")
    for kill_after_lines in range(1, 12, 2):
        process = local.start("run", str(local.file), "--ds", DS, "--fresh")
        assert process.stderr is not None
        for _ in range(kill_after_lines):
            process.stderr.readline()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        report = local.run()
        assert published(Objects(), str(local.folder)) == first
        assert report["repeated_shards"] <= 2


def test_workers_end_with_their_killed_parent(local: JobHome) -> None:
    process = local.start("run", str(local.file), "--ds", DS)
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (children := listed.read_text().split()):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, "a child outlived its killed parent"
        time.sleep(0.05)


def test_interrupt_says_what_is_kept(local: JobHome) -> None:
    process = local.start("run", str(local.file), "--ds", DS)
    assert process.stderr is not None
    while "plan:" not in process.stderr.readline():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "run the same command to continue" in errors


def test_bad_rows_are_rows(tmp_path: Path, tiny_model: Path) -> None:
    home = make_home(tmp_path, tiny_model, str(tmp_path), reject_budget={"share": 0.5}, truncation="reject")
    good = [{"id": f"g{index}", "text": "a good movie " * (1 + index % 5), "group": "a"} for index in range(20)]
    lines = jsonl(good).splitlines(keepends=True)
    bad = [b'{"id": "x1", "text": null, "group": "a"}\n', b"{broken\n", b'{"id": "x2", "text": "\xff", "group": "a"}\n']
    too_long = [json.dumps({"id": "x3", "text": "good movie " * 200, "group": "a"}).encode() + b"\n"]
    mixed = [*lines[:5], bad[0], *lines[5:9], bad[1], *lines[9:15], bad[2], *lines[15:], *too_long]
    Objects().put(f"{tmp_path}/in/ds={DS}/rows.jsonl", b"".join(mixed))
    report = home.run()
    assert (report["rows"], report["predicted"], report["rejected"]) == (24, 20, 4)
    predictions = pq.read_table(f"{tmp_path}/out/predictions/ds={DS}/part-00000.parquet").to_pylist()
    assert [row["row_id"] for row in predictions] == [row["id"] for row in good]
    assert [mixed[row["source_row"]] for row in predictions] == lines
    rejects = pq.read_table(f"{tmp_path}/out/rejects/ds={DS}/part-00000.parquet").to_pylist()
    assert [(row["source_row"], row["stage"], row["reason"]) for row in rejects] == [
        (5, "read", "null_text"),
        (10, "read", "malformed_json"),
        (17, "read", "invalid_utf8"),
        (23, "tokenize", "too_long"),
    ]


def test_over_the_reject_budget_nothing_is_published(tmp_path: Path, tiny_model: Path) -> None:
    home = make_home(tmp_path, tiny_model, str(tmp_path), reject_budget={"share": 0.1})
    Objects().put(f"{tmp_path}/in/ds={DS}/rows.jsonl", jsonl(rows(8)) + b"no json\n" * 2)
    done = home.command("run", str(home.file), "--ds", DS)
    assert done.returncode == 3
    assert "2 of 10 rows were rejected" in done.stderr
    assert "malformed_json" in done.stderr
    assert not (tmp_path / "out/predictions").exists()


@pytest.mark.parametrize("poisoned_weight", [float("nan"), float("inf")])
def test_a_model_that_returns_nan_is_refused_before_it_is_used(
    tmp_path: Path, tiny_model: Path, poisoned_weight: float
) -> None:
    from safetensors.torch import load_file, save_file

    model = tmp_path / "model"
    model.mkdir()
    for path in tiny_model.iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    tensors = load_file(model / "model.safetensors")
    tensors["classifier.bias"][0] = poisoned_weight
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    home = make_home(tmp_path, model, str(tmp_path))
    put_rows(Objects().put, str(tmp_path), rows(20))
    done = home.command("run", str(home.file), "--ds", DS)
    assert done.returncode == 4
    assert "refused" in done.stderr
    assert not (tmp_path / "out/predictions").exists()


def test_an_empty_night_publishes_the_schema(tmp_path: Path, tiny_model: Path) -> None:
    home = make_home(tmp_path, tiny_model, str(tmp_path), input={"when_missing": "empty"})
    (tmp_path / "in").mkdir()
    report = home.run()
    assert (report["rows"], report["predicted"]) == (0, 0)
    empty = pq.read_table(f"{tmp_path}/out/predictions/ds={DS}/part-00000.parquet")
    assert empty.num_rows == 0
    other = "2026-11-25"
    put_rows(Objects().put, str(tmp_path), rows(5), ds=other)
    home.run(ds=other)
    full = pq.read_table(f"{tmp_path}/out/predictions/ds={other}/part-00000.parquet", partitioning=None)
    assert (
        full.schema == pq.read_table(f"{tmp_path}/out/predictions/ds={DS}/part-00000.parquet", partitioning=None).schema
    )


def test_a_night_of_rejects_only_publishes_no_predictions(tmp_path: Path, tiny_model: Path) -> None:
    home = make_home(tmp_path, tiny_model, str(tmp_path), reject_budget={"share": 1.0})
    Objects().put(f"{tmp_path}/in/ds={DS}/rows.jsonl", b"no json\n")
    report = home.run()
    assert (report["rows"], report["predicted"], report["rejected"]) == (1, 0, 1)


def test_changed_parameters_make_another_fingerprint_and_replace_the_partition(local: JobHome) -> None:
    first = local.run()
    shorter = make_home(
        local.folder, Path(local.context().job.model.uri), str(local.folder), max_length=64, shapes=["8x64"]
    )
    second = shorter.run()
    assert second["fingerprint"] != first["fingerprint"]
    table = pq.read_table(f"{local.folder}/out/predictions/ds={DS}/part-00000.parquet", partitioning=None)
    assert set(table["fingerprint"].to_pylist()) == {second["fingerprint"]}
    assert max(table["token_count"].to_pylist()) == 64


def test_several_splits_become_one_file_that_holds_every_row_once(tmp_path: Path, tiny_model: Path) -> None:
    """Over the split limit by rows: three Parquet row groups of more than half the limit each."""
    import pyarrow as pa

    source = rows(240)
    home = make_home(tmp_path, tiny_model, str(tmp_path), input={"keep": {}, "split_rows": 100})
    path = tmp_path / f"in/ds={DS}/rows.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(source), path, row_group_size=80)
    report = home.run()
    assert report["predicted"] == 240
    context = home.context()
    assert load_run(context.objects, context.layout.run(DS, report["fingerprint"])).parts == 3
    (part,) = (tmp_path / f"out/predictions/ds={DS}").iterdir()
    table = pq.read_table(part, partitioning=None)
    assert table["row_id"].to_pylist() == [row["id"] for row in source]
    assert table["source_row"].to_pylist() == list(range(240))


def test_report_is_derivable_from_output_and_events(local: JobHome) -> None:
    report = local.run()
    folder = local.folder / "out"
    counted = duckdb.sql(
        f"SELECT count(*), sum(token_count), count(DISTINCT row_id) FROM '{folder}/predictions/*/*.parquet'"
    ).fetchone()
    assert counted == (report["predicted"], report["real_tokens"], report["predicted"])
    events = duckdb.sql(
        f"""SELECT sum(slot_tokens), sum(real_tokens), count(*) FROM read_json_auto(
        '{folder}/_lengthwise/runs/ds={DS}/{report["fingerprint"]}/events/*.jsonl', union_by_name=true)
        WHERE event = 'shard'"""
    ).fetchone()
    assert events is not None
    assert events[:2] == (report["slot_tokens"], report["real_tokens"])
    shapes: dict[str, int] = dict(
        duckdb.sql(f"SELECT shape, count(*) FROM '{folder}/predictions/*/*.parquet' GROUP BY 1").fetchall()
    )
    assert shapes == {shape["shape"]: shape["rows"] for shape in report["shapes"] if shape["rows"]}
    assert all(report["seconds"][step] > 0 for step in ("snapshot", "tokenize", "infer"))
    assert report["cost"] == pytest.approx(report["total_seconds"] / 3600 * 0.5)
    assert set(report["seconds"]) == {"snapshot", "tokenize", "plan", "compile", "infer", "publish", "commit"}


def test_a_committed_run_leaves_no_temporary_objects(local: JobHome) -> None:
    report = local.run()
    run = Path(load_run(Objects(), f"{local.folder}/out/_lengthwise/runs/ds={DS}/{report['fingerprint']}").uri)
    left: set[Any] = {path.parent.name for path in run.rglob("*") if path.is_file()}
    assert left == {run.name, "events"}
