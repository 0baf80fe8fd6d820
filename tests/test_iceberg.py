"""Iceberg tables: what other readers make of them, commits at the same time, orphans, and changes of the schema."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extensions
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from staging import fingerprint, make_context, replace, sqlite_catalog, stage

from demo.query import connect
from demo.servers.seaweed import S3Endpoint
from jobs import DS, make_home, put_rows, rows
from pipeline.columns import ARROW_TYPES, table_schemas
from pipeline.context import Context
from pipeline.errors import JobError, StorageError
from pipeline.job import parse_job
from pipeline.manifest import Manifest, committed
from pipeline.objects import Objects
from pipeline.published import is_published
from pipeline.run_plan import load_run
from pipeline.tables import Seen, Staged, table_format
from pipeline.tables.catalog import find_table, open_catalog
from pipeline.tables.orphans import referred

LATER = "2026-11-25"


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return make_context(tmp_path, str(tmp_path), **sqlite_catalog(tmp_path))


def table_of(context: Context, name: str = "predictions") -> Table:
    found = find_table(context, open_catalog(context), name)
    assert found is not None
    return found


def counts(context: Context, name: str = "predictions") -> dict[tuple[str, str], int]:
    """(ds, fingerprint) -> rows."""
    found: dict[tuple[str, str], int] = {}
    for row in table_of(context, name).scan().to_arrow().to_pylist():
        key = (row["ds"].isoformat(), row["fingerprint"])
        found[key] = found.get(key, 0) + 1
    return found


def manifest_of(context: Context, staged: Staged, files: dict[str, list[dict[str, Any]]]) -> Manifest:
    return Manifest(staged.fingerprint, context.ds, 0, 0, 0, {}, 0, 0, 0, files)


def test_duckdb_reads_every_column_and_type(tmp_path: Path, s3: S3Endpoint) -> None:
    """Field ids are in the files, as Spark and Trino need them; DuckDB's own Iceberg reader is asked."""
    base = make_context(tmp_path, f"s3://{s3.bucket}/job", **sqlite_catalog(tmp_path), all_scores=True)
    keep = {f"k_{name}": {"column": name, "type": name} for name in ARROW_TYPES}
    job = parse_job({**base.job.model_dump(mode="json"), "input": {"uri": "in/", "text": "t", "keep": keep}}, "test")
    context = changed(base, job=job)
    replace(context, stage(context, 1, 30, parts=2))
    replace(changed(context, ds=LATER), stage(changed(context, ds=LATER), 2, 12))
    table = table_of(context)
    with connect(s3) as connection:
        for extension in ("avro", "iceberg"):
            duckdb_extensions.import_extension(extension)
            connection.execute(f"LOAD {extension}")
        scan = f"iceberg_scan('{table.metadata_location}')"
        assert connection.execute(
            f"SELECT ds, count(*), sum(source_row) FROM {scan} GROUP BY 1 ORDER BY 1"
        ).fetchall() == [
            (datetime.date.fromisoformat(DS), 30, 435),
            (datetime.date.fromisoformat(LATER), 12, 66),
        ]
        described = {name: kind for name, kind, *_ in connection.execute(f"DESCRIBE SELECT * FROM {scan}").fetchall()}
        only = f"SELECT count(*) FROM {scan} WHERE ds = DATE '{LATER}' AND fingerprint = '{fingerprint(2)}'"
        assert connection.execute(only).fetchone() == (12,)
    assert described == {
        "k_string": "VARCHAR", "k_bool": "BOOLEAN", "k_int32": "INTEGER", "k_int64": "BIGINT", "k_float": "FLOAT",
        "k_double": "DOUBLE", "k_date": "DATE", "k_timestamp": "TIMESTAMP", "label": "VARCHAR", "score": "FLOAT",
        "scores": "FLOAT[]", "row_id": "VARCHAR", "source_uri": "VARCHAR", "source_row": "BIGINT",
        "token_count": "INTEGER", "truncated_tokens": "INTEGER", "shape": "VARCHAR", "artifact": "VARCHAR",
        "fingerprint": "VARCHAR", "ds": "DATE",
    }  # fmt: skip
    (task,) = table.scan(f"ds == '{DS}'").plan_files()
    schema = pq.read_schema(pa.BufferReader(context.objects.get(task.file.file_path)))
    ids = {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in schema}
    assert ids == {field.name: field.field_id for field in table.schema().fields}


def test_a_night_without_rows_and_back(context: Context) -> None:
    for version, amount in ((1, 10), (2, 0), (3, 0), (4, 5)):
        staged = stage(context, version, amount, rejects=0)
        files = replace(context, staged)
        seen = table_format(context).look(context)
        assert table_format(context).shows(manifest_of(context, staged, files), seen)
        assert counts(context) == ({(DS, fingerprint(version)): amount} if amount else {})
    assert counts(context, "rejects") == {}


def test_one_snapshot_per_table_and_night_and_none_for_the_same_content(context: Context) -> None:
    staged = stage(context, 1, 10, parts=2)
    files = replace(context, staged)
    replace(context, stage(context, 2, 20))
    assert [snapshot.summary.operation.value for snapshot in table_of(context).snapshots()] == ["append", "overwrite"]
    again = stage(context, 2, 20)
    before = replace(context, again)
    assert replace(context, again) == before
    assert len(table_of(context).snapshots()) == 2
    summary = table_of(context).current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert summary.additional_properties["lengthwise.fingerprint"] == fingerprint(2)
    assert summary.additional_properties["total-records"] == "20"
    assert files != before


def test_dates_that_are_backfilled_at_once_all_land(context: Context) -> None:
    nights = [changed(context, ds=f"2026-11-{day:02}") for day in range(1, 7)]
    staged = [stage(night, number, 10 + number) for number, night in enumerate(nights)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(replace, nights, staged))
    assert counts(context) == {(night.ds, fingerprint(number)): 10 + number for number, night in enumerate(nights)}


def test_of_two_versions_of_a_date_at_once_one_wins_whole(context: Context) -> None:
    replace(context, stage(context, 0, 5))
    seen = table_format(context).look(context)

    def attempt(version: int) -> int | None:
        try:
            table_format(context).replace(context, stage(context, version, 10 * version), seen)
        except StorageError:
            return None
        return version

    with ThreadPoolExecutor(3) as pool:
        (winner,) = [version for version in pool.map(attempt, (1, 2, 3)) if version is not None]
    assert counts(context) == {(DS, fingerprint(winner)): 10 * winner}


def test_one_version_twice_at_once_is_there_once(context: Context) -> None:
    seen = table_format(context).look(context)
    staged = stage(context, 1, 10)

    def attempt(_: int) -> Seen:
        table_format(context).replace(context, staged, seen)
        return table_format(context).look(context)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(attempt, range(2))
    assert first == second
    assert counts(context) == {(DS, fingerprint(1)): 10}


def test_orphans_go_after_the_grace_period_and_nothing_else(context: Context) -> None:
    tables = table_format(context)
    for version in (1, 2, 3):
        staged = stage(context, version, version * 10)
        files = replace(context, staged)
    manifest = manifest_of(context, staged, files)
    folder = Path(f"{context.job.output.uri}/predictions/data/ds={DS}")
    (folder / "lengthwise-orphan.parquet").write_bytes(b"of a killed commit")
    (folder.parents[1] / "metadata/orphan.avro").write_bytes(b"of a killed commit")
    hour = 3600
    assert tables.tidy(context, manifest, time.time() - hour) == 0, "a running commit may be about to refer to it"
    assert len(table_of(context).snapshots()) == 3, "readers may still use the older snapshots"
    assert tables.tidy(context, manifest, time.time() + hour) == 5, "two replaced files per table, and the orphan"
    removed = tables.tidy_all(context, time.time() + hour)
    assert removed >= 1 + 2 * 2, "the orphan, and the manifest lists of the expired snapshots"
    assert len(table_of(context).snapshots()) == 1
    for name in ("predictions", "rejects"):
        left = {str(path) for path in Path(f"{context.job.output.uri}/{name}").rglob("*") if path.is_file()}
        assert left == set(referred(table_of(context, name)))
    assert counts(context) == {(DS, fingerprint(3)): 30}
    assert tables.shows(manifest, tables.look(context))


def test_files_of_another_engine_stay_published_while_the_rows_add_up(context: Context) -> None:
    tables = table_format(context)
    staged = stage(context, 1, 10)
    manifest = manifest_of(context, staged, replace(context, staged))
    table = table_of(context)
    content = table.scan().to_arrow()
    table.overwrite(content)  # as a compaction does
    assert tables.shows(manifest, tables.look(context))
    table.overwrite(content.slice(1))
    assert not tables.shows(manifest, tables.look(context))


def test_a_lost_data_file_is_not_published(context: Context) -> None:
    tables = table_format(context)
    staged = stage(context, 1, 10)
    manifest = manifest_of(context, staged, replace(context, staged))
    (path,) = tables.look(context)["predictions"]
    Path(path).unlink()
    assert not tables.shows(manifest, tables.look(context))
    replace(context, staged)
    assert counts(context) == {(DS, fingerprint(1)): 10}


def test_an_accepted_column_is_added_and_older_nights_have_null(context: Context) -> None:
    replace(context, stage(context, 1, 3))
    job = context.job
    keep = {"group": {"column": "group", "type": "string"}}
    grown = parse_job({**job.model_dump(mode="json"), "input": {"uri": "in/", "text": "t", "keep": keep}}, "test")
    later = changed(context, job=grown, ds=LATER)
    replace(later, stage(later, 2, 4))
    groups = table_of(context).scan().to_arrow().sort_by("ds")["group"].to_pylist()
    assert groups == [None] * 3 + ["text"] * 4
    keep["group"]["type"] = "int32"
    other = parse_job({**grown.model_dump(mode="json"), "input": {"uri": "in/", "text": "t", "keep": keep}}, "test")
    with pytest.raises(JobError, match="predictions cannot change so"):  # before it is declared or anything staged
        table_format(later).check_columns(later, table_schemas(other, ("a", "b"), "single_label"))
    with pytest.raises(JobError, match="cannot change so"):
        replace(changed(later, job=other), stage(changed(later, job=other), 3, 4))
    assert counts(context) == {(DS, fingerprint(1)): 3, (LATER, fingerprint(2)): 4}


@pytest.mark.parametrize(
    ("catalog", "message"),
    [
        ({"name": "lake", "type": "sql"}, "PYICEBERG_CATALOG__LAKE__URI"),
        ({"name": "lake", "type": "rest", "properties": {"uri": "http://127.0.0.1:9"}}, "catalog lake"),
    ],
)
def test_a_catalog_that_cannot_be_opened_says_what_to_set(
    tmp_path: Path, catalog: dict[str, Any], message: str
) -> None:
    context = make_context(tmp_path, str(tmp_path), table="iceberg", catalog=catalog)
    with pytest.raises((JobError, StorageError), match=re.escape(message)):
        open_catalog(context)


def test_settings_of_the_environment_complete_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own: pyiceberg reads them when it is imported."""
    monkeypatch.setenv("PYICEBERG_CATALOG__MY_LAKE__URI", f"sqlite:///{tmp_path}/c.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__MY_LAKE__TYPE", "sql")
    code = """
import sys; sys.path[:0] = [".", "tests"]
from pathlib import Path
from staging import make_context
from pipeline.tables.catalog import open_catalog
folder = Path(sys.argv[1])
print(open_catalog(make_context(folder, str(folder), table="iceberg", catalog={"name": "my-lake"})).list_namespaces())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout == "[]\n"


def test_a_whole_run_into_iceberg(tmp_path: Path, tiny_model: Path) -> None:
    """By the command line, twice, then from the start: each table has each row once."""
    home = make_home(
        tmp_path,
        tiny_model,
        str(tmp_path),
        output=sqlite_catalog(tmp_path),
        reject_budget={"share": 0.5},
        shapes=["8x128"],
    )
    put_rows(Objects().put, str(tmp_path), [*rows(30), {"id": "none", "text": None, "group": "a"}])
    first = home.run()
    assert (first["predicted"], first["rejected"]) == (30, 1)
    context = home.context()
    run = load_run(context.objects, context.layout.run(DS, first["fingerprint"]))
    assert is_published(context, run)
    assert "is published already" in home.command("run", str(home.file), "--ds", DS).stderr
    snapshots = len(table_of(context).snapshots())
    again = home.run("--fresh")
    assert again["fingerprint"] == first["fingerprint"]
    assert again["generation"] == 1
    assert counts(context) == {(DS, first["fingerprint"]): 30}
    assert counts(context, "rejects") == {(DS, first["fingerprint"]): 1}
    assert len(table_of(context).snapshots()) == snapshots, "the same bytes are not committed again"
    manifest = committed(context)
    assert manifest is not None
    assert manifest.generation == 1
    assert duckdb.sql(f"SELECT count(*) FROM '{tmp_path}/out/metrics/*/*.parquet'").fetchone() == (1,)
