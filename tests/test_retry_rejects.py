"""Rejects of a published night are run again: what is predicted now joins the partition in input order."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from jobs import DS, JobHome, jsonl, make_home, published, rows
from pipeline import flow, splits, steps
from pipeline.errors import JobError, StorageError
from pipeline.layout import part_object
from pipeline.objects import Objects
from pipeline.snapshot import load_snapshot

LONG = (3, 17, 40)
"""Rows that are too long for max_length 32."""


def night(count: int = 60) -> list[dict[str, Any]]:
    return [{**row, "text": "a good movie " * (20 if index in LONG else 3)} for index, row in enumerate(rows(count))]


def make_job(folder: Path, model: Path, **fields: Any) -> JobHome:
    settings = {"shapes": ["8x32"], "max_length": 32, "truncation": "reject", "reject_budget": {"share": 0.2}}
    return make_home(folder, model, str(folder), **{**settings, **fields})


def change(home: JobHome, **fields: Any) -> None:
    """Edit the job file."""
    home.file.write_text(yaml.safe_dump(yaml.safe_load(home.file.read_text()) | fields))


@pytest.fixture
def home(tmp_path: Path, tiny_model: Path) -> JobHome:
    """A published night with 3 rows that are too long and one that is no JSON, between the others."""
    lines = jsonl(night()).splitlines(keepends=True)
    Objects().put(f"{tmp_path}/in/ds={DS}/a.jsonl", b"".join([*lines[:20], b"no json\n", *lines[20:]]))
    home = make_job(tmp_path, tiny_model)
    report = home.run()
    assert report["reject_reasons"] == {"too_long": 3, "malformed_json": 1}
    return home


def retry(home: JobHome) -> dict[str, Any]:
    done = home.command("retry-rejects", str(home.file), "--ds", DS, "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def table(home: JobHome, name: str) -> list[dict[str, Any]]:
    parts = sorted((home.folder / f"out/{name}/ds={DS}").glob("*.parquet"))
    return [row for part in parts for row in pq.read_table(part, partitioning=None).to_pylist()]


def without_run(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "fingerprint"} for row in found]


def test_rows_that_fit_now_join_the_partition(home: JobHome) -> None:
    first = table(home, "predictions")
    base = first[0]["fingerprint"]
    change(home, truncation="head")
    report = retry(home)
    assert (report["rows"], report["predicted"], report["rejected"]) == (61, 60, 1)
    assert report["reject_reasons"] == {"malformed_json": 1}
    assert report["truncated_rows"] == 3
    assert [entry["rows"] for entry in report["retries"]] == [3]
    merged = table(home, "predictions")
    assert [row["source_row"] for row in merged] == [row for row in range(61) if row != 20]
    assert [row for row in merged if row["fingerprint"] == base] == first, "rows that were there are as they were"
    assert [row["row_id"] for row in merged if row["fingerprint"] != base] == [f"r{row}" for row in LONG]
    (left,) = table(home, "rejects")
    assert (left["source_row"], left["reason"], left["fingerprint"]) == (20, "malformed_json", report["fingerprint"])
    assert report["fingerprint"] != base

    # Again: the one reject that is left stays one, and nothing is touched.
    before = {uri: os.stat(uri).st_mtime_ns for uri in published(Objects(), str(home.folder))}
    again = home.command("retry-rejects", str(home.file), "--ds", DS, "--json")
    assert "none of 1 rejects was predicted; nothing was changed" in again.stderr
    assert json.loads(again.stdout) == report
    assert {uri: os.stat(uri).st_mtime_ns for uri in published(Objects(), str(home.folder))} == before

    # A run of the changed job is another run: it does the whole night, and the rows are the same.
    plain = home.run()
    assert plain["fingerprint"] not in (base, report["fingerprint"])
    assert without_run(table(home, "predictions")) == without_run(merged)


def test_a_run_of_the_same_job_keeps_what_a_retry_has_won(home: JobHome) -> None:
    change(home, truncation="head")
    report = retry(home)
    change(home, truncation="reject")
    before = published(Objects(), str(home.folder))
    done = home.command("run", str(home.file), "--ds", DS, "--json")
    assert done.returncode == 0, done.stderr
    assert "is published already" in done.stderr
    assert json.loads(done.stdout) == report
    assert published(Objects(), str(home.folder)) == before
    assert home.run("--fresh")["rejected"] == 4, "--fresh starts over"


def changed(home: JobHome, **fields: Any) -> Any:
    """The job with other fields, in this process."""
    change(home, **fields)
    return home.context()


def test_what_a_retry_refuses(home: JobHome) -> None:
    before = published(Objects(), str(home.folder))
    original = home.file.read_text()
    job = yaml.safe_load(original)
    with pytest.raises(
        JobError, match=r"^input: changed since .* only these may change: max_length, truncation, target"
    ):
        steps.snapshot(changed(home, input={**job["input"], "text": "id"}), retry=True)
    with pytest.raises(JobError, match="all_scores: changed since"):
        steps.snapshot(changed(home, output={**job["output"], "all_scores": True}), retry=True)
    with pytest.raises(JobError, match="is not published by this version, so there are no rejects to retry"):
        steps.snapshot(changed(home, output={"uri": f"{home.folder}/other"}), retry=True)
    home.file.write_text(original)
    Objects().put(f"{home.folder}/in/ds={DS}/b.jsonl", jsonl(rows(1)))
    done = home.command("retry-rejects", str(home.file), "--ds", DS)
    assert done.returncode == 2
    assert "the input is not what was published: objects were added, removed or replaced" in done.stderr
    assert published(Objects(), str(home.folder)) == before


def test_a_retry_of_a_version_that_was_replaced_changes_nothing(home: JobHome) -> None:
    context = changed(home, truncation="head")
    taken = steps.snapshot(context, retry=True)
    assert taken["retry_of"]
    change(home, truncation="tail")
    home.run()
    before = published(Objects(), str(home.folder))
    with pytest.raises(StorageError, match="was published anew since this retry"):
        steps.tokenize(context, taken["snapshot"], retry_of=taken["retry_of"])
    assert published(Objects(), str(home.folder)) == before


def step(home: JobHome, name: str, *arguments: str) -> dict[str, Any]:
    """One step as Airflow's tasks start it."""
    done = home.command("step", name, "--job", str(home.file), "--ds", DS, *arguments)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_a_killed_retry_goes_on(home: JobHome) -> None:
    """Also from a commit that had replaced the first table and not the second."""
    change(home, truncation="tail")
    for lines in (2, 4):
        process = home.start("retry-rejects", str(home.file), "--ds", DS)
        assert process.stderr is not None
        for _ in range(lines):
            process.stderr.readline()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    taken = step(home, "snapshot", "--retry-rejects")
    pinned = ("--snapshot", taken["snapshot"], "--retry-of", taken["retry_of"])
    step(home, "tokenize", *pinned)
    run = step(home, "plan", *pinned)["run"]
    for name in ("infer", "publish"):
        step(home, name, "--run", run)
    first = f"{home.folder}/out/predictions/ds={DS}/part-00000.parquet"
    Objects().copy(part_object(run, "predictions", 0), first)
    report = retry(home)
    assert (report["predicted"], report["rejected"]) == (60, 1)
    merged = table(home, "predictions")
    assert [row["source_row"] for row in merged] == [row for row in range(61) if row != 20]
    home.run()
    assert without_run(table(home, "predictions")) == without_run(merged)


def test_rejects_of_several_parts(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One object in three splits, the second of them without a reject, the third with two small objects beside it."""
    monkeypatch.setattr(splits.gather, "__defaults__", (splits.MAX_SPLIT_BYTES, 30))
    home = make_job(tmp_path, tiny_model, input={"keep": {}})
    source = night(60)
    folder = tmp_path / f"in/ds={DS}"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(source), folder / "a.parquet", row_group_size=20)
    for name in ("b", "c"):
        pq.write_table(pa.Table.from_pylist(source[1:5]), folder / f"{name}.parquet")
    for name in ("LENGTHWISE_CACHE", "LENGTHWISE_LOCK_DIR"):
        monkeypatch.setenv(name, home.environment[name])
    assert flow.run(home.context(), home.file)["rejected"] == 5
    (pinned,) = (tmp_path / f"out/_lengthwise/snapshots/ds={DS}").glob("*.json")
    assert len(load_snapshot(Objects(), str(pinned)).splits) == 3
    context = changed(home, truncation="head_tail")
    report = flow.run(context, home.file, retry=True)
    assert (report["predicted"], report["rejected"], report["truncated_rows"]) == (68, 0, 5)
    merged = table(home, "predictions")
    assert [row["row_id"] for row in merged] == [row["id"] for row in (*source, *source[1:5], *source[1:5])]
    assert sum(row["truncated_tokens"] for row in merged) == report["truncated_tokens"] > 0
    flow.run(context, home.file)
    assert without_run(table(home, "predictions")) == without_run(merged)
