"""How staged parts become what readers see: joined, replaced at once, and the same end after any crash or race."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from staging import LABELS, fingerprint, make_context, replace, sqlite_catalog, stage

from demo.servers.seaweed import S3Endpoint
from pipeline.columns import ARROW_TYPES, prediction_schema
from pipeline.context import Context
from pipeline.errors import StorageError
from pipeline.job import parse_job
from pipeline.manifest import Manifest
from pipeline.objects import Objects
from pipeline.objects import s3 as s3_objects
from pipeline.parquet_files import parquet_bytes, write_joined
from pipeline.tables import Staged, table_format
from pipeline.tables.joined import joined


@pytest.fixture(params=["local", "s3"])
def context(request: pytest.FixtureRequest, tmp_path: Path) -> Context:
    root = str(tmp_path) if request.param == "local" else f"s3://{request.getfixturevalue('s3').bucket}/job"
    return make_context(tmp_path, root)


def visible(context: Context, table: str = "predictions") -> pa.Table:
    prefix = context.layout.partition(table, context.ds)
    (uri,) = context.objects.list(prefix)
    return pq.read_table(pa.BufferReader(context.objects.get(uri)))


def manifest_of(context: Context, staged: Staged, files: dict[str, list[dict[str, object]]]) -> Manifest:
    return Manifest(staged.fingerprint, context.ds, 0, 0, 0, {}, 0, 0, 0, files)


def test_parts_become_one_file_with_their_rows_in_order(context: Context) -> None:
    staged = stage(context, 1, 1_000, parts=7)
    files = replace(context, staged)
    (file,) = files["predictions"]
    (uri,) = context.objects.list(context.layout.partition("predictions", context.ds))
    data = context.objects.get(uri)
    assert visible(context)["source_row"].to_pylist() == list(range(1_000))
    assert (file["rows"], file["size_bytes"], file["sha256"]) == (1_000, len(data), hashlib.sha256(data).hexdigest())
    assert replace(context, staged) == files, "the same bytes again"
    assert table_format(context).shows(manifest_of(context, staged, files), table_format(context).look(context))


def test_a_lone_part_stays_byte_for_byte(context: Context) -> None:
    staged = stage(context, 1, 10)
    replace(context, staged)
    (uri,) = context.objects.list(context.layout.partition("rejects", context.ds))
    assert context.objects.get(uri) == context.objects.get(staged.parts["rejects"][0].uri)


def test_a_file_over_the_limit_of_one_put_appears_at_once(
    tmp_path: Path, s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_objects, "_ONE_PUT_BYTES", 5 << 20)
    objects, uri = Objects(), f"s3://{s3.bucket}/large"
    first, second = os.urandom(11 << 20), os.urandom(12 << 20)
    (tmp_path / "first").write_bytes(first)
    (tmp_path / "second").write_bytes(second)
    with (tmp_path / "first").open("rb") as file:
        assert objects.put_file_if(uri, file, None)
        assert not objects.put_file_if(uri, file, None), "it is there already"
    with (tmp_path / "second").open("rb") as file:
        assert not objects.put_file_if(uri, file, "0" * 32)
        assert objects.get(uri) == first
        assert objects.put_file_if(uri, file, objects.head(uri).etag)
    assert objects.get(uri) == second
    assert not s3.client().list_multipart_uploads(Bucket=s3.bucket).get("Uploads"), "refused uploads are given up"
    s3.client().create_multipart_upload(Bucket=s3.bucket, Key="job/killed")
    assert objects.discard_unfinished(f"s3://{s3.bucket}/job/", time.time() - 3600) == 0
    assert objects.discard_unfinished(f"s3://{s3.bucket}/job/", time.time() + 3600) == 1


def test_joining_makes_row_groups_of_a_useful_size(tmp_path: Path) -> None:
    tables = [pa.table({"n": pa.array(range(60_000), pa.int64())})] * 5
    with (tmp_path / "x.parquet").open("w+b") as file:
        write_joined(iter(tables), file, 100_000)
    groups = pq.ParquetFile(tmp_path / "x.parquet").metadata
    assert [groups.row_group(index).num_rows for index in range(groups.num_row_groups)] == [120_000, 120_000, 60_000]


def test_a_damaged_or_missing_part_is_never_published(context: Context) -> None:
    replace(context, stage(context, 1, 50, parts=2))
    staged = stage(context, 2, 70, parts=2)
    part = staged.parts["predictions"][1]
    context.objects.put(part.uri, context.objects.get(part.uri)[:-1] + b"?")
    for _ in range(2):  # damaged, and then removed so that it can be made again
        with pytest.raises(FileNotFoundError), joined(context, staged.parts["predictions"]):
            pass
        assert not context.objects.exists(part.uri)
    with pytest.raises(FileNotFoundError):
        replace(context, staged)
    assert visible(context).num_rows == 50


def test_of_two_versions_at_once_one_is_published_and_the_other_is_told(context: Context) -> None:
    replace(context, stage(context, 0, 5))
    versions = [stage(context, version, 100 * version, parts=2) for version in (1, 2, 3)]
    tables = table_format(context)
    seen = tables.look(context)

    def attempt(staged: Staged) -> str:
        try:
            tables.replace(context, staged, seen)
        except StorageError:
            return ""
        return staged.fingerprint

    with ThreadPoolExecutor(3) as pool:
        winners = [winner for winner in pool.map(attempt, versions) if winner]
    assert len(winners) == 1
    for table in ("predictions", "rejects"):
        assert set(visible(context, table)["fingerprint"].to_pylist()) == set(winners)


def test_one_version_twice_at_once_is_published_by_both(context: Context) -> None:
    replace(context, stage(context, 0, 5))
    staged = stage(context, 1, 100, parts=2)
    tables = table_format(context)
    seen = tables.look(context)
    with ThreadPoolExecutor(3) as pool:
        files = list(pool.map(lambda _: tables.replace(context, staged, seen), range(3)))
    assert files[0] == files[1] == files[2]
    assert visible(context).num_rows == 100


def test_only_what_readers_would_read_is_removed_beside_the_file(context: Context) -> None:
    staged = stage(context, 1, 10)
    folder = context.layout.partition("predictions", context.ds)
    files = replace(context, staged)
    manifest = manifest_of(context, staged, files)
    for name in ("_SUCCESS", "part-00001-older.parquet"):
        context.objects.put(folder + name, b"x")
    tables = table_format(context)
    assert not tables.shows(manifest, tables.look(context))
    assert tables.tidy(context, manifest, before=0) == 1
    assert tables.shows(manifest, tables.look(context))
    assert [uri.rsplit("/", 1)[1] for uri in context.objects.list(folder)] == ["_SUCCESS", "part-00000.parquet"]


KILLED = """
import sys
sys.path[:0] = [".", "tests"]
from pathlib import Path
from staging import make_context, replace, sqlite_catalog, stage
folder, root, kind = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
context = make_context(folder, root, **(sqlite_catalog(folder) if kind == "iceberg" else {}))
versions = [stage(context, version, 100 + version, parts=3) for version in (1, 2)]
print("ready", flush=True)
for number in range(10_000):
    replace(context, versions[number % 2])
"""


@pytest.mark.parametrize(("kind", "kills"), [("parquet", 8), ("iceberg", 5)])
def test_killed_while_it_publishes(tmp_path: Path, s3: S3Endpoint, kind: str, kills: int) -> None:
    """kill -9 anywhere between two writes: each table is whole, and the next attempt ends as if nothing had been."""
    root = f"s3://{s3.bucket}/job"
    context = make_context(tmp_path, root, **(sqlite_catalog(tmp_path) if kind == "iceberg" else {}))
    tables = table_format(context)
    final = stage(context, 3, 103, parts=3)
    for kill in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path), root, kind], stdout=subprocess.PIPE, env=dict(os.environ)
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.3 + 0.13 * kill)
        process.kill()
        process.communicate()
        counts = rows_by_version(context)
        assert counts in ({}, {fingerprint(1): 101}, {fingerprint(2): 102}), f"kill {kill}: {counts}"
    files = replace(context, final)
    assert rows_by_version(context) == {fingerprint(3): 103}
    manifest = manifest_of(context, final, files)
    tables.tidy(context, manifest, time.time() + 3600)
    tables.tidy_all(context, time.time() + 3600)
    context.objects.discard_unfinished(f"{context.job.output.uri}/", time.time() + 3600)
    assert tables.shows(manifest, tables.look(context))
    data = [uri for uri in context.objects.list(f"{context.job.output.uri}/predictions/") if uri.endswith(".parquet")]
    assert len(data) == 1, "nothing of the killed attempts is left"


def rows_by_version(context: Context) -> dict[str, int]:
    if context.job.output.table == "iceberg":
        from pipeline.tables.catalog import find_table, open_catalog

        found = find_table(context, open_catalog(context), "predictions")
        names = found.scan().to_arrow()["fingerprint"].to_pylist() if found is not None else []
    else:
        uris = context.objects.list(context.layout.partition("predictions", context.ds))
        names = visible(context)["fingerprint"].to_pylist() if uris else []
    return {name: names.count(name) for name in set(names)}


def test_what_is_written_are_types_that_athena_spark_and_trino_read() -> None:
    """The table in README, from the file's own Parquet schema."""
    job = parse_job(
        {
            "name": "all_types",
            "model": {"uri": "m"},
            "input": {"uri": "in/", "text": "t", "keep": {f"k_{name}": name for name in ARROW_TYPES}},
            "output": {"uri": "out", "all_scores": True},
        },
        "test",
    )
    data = parquet_bytes(prediction_schema(job, LABELS, "multi_label").empty_table())
    file = pq.ParquetFile(pa.BufferReader(data))
    columns = [file.schema.column(index) for index in range(len(file.schema))]
    kinds = {column.path: (column.physical_type, _logical(column)) for column in columns}
    string, plain = ("BYTE_ARRAY", "String"), "None"
    assert kinds == {
        "k_string": string,
        "k_bool": ("BOOLEAN", plain),
        "k_int32": ("INT32", plain),
        "k_int64": ("INT64", plain),
        "k_float": ("FLOAT", plain),
        "k_double": ("DOUBLE", plain),
        "k_date": ("INT32", "Date"),
        "k_timestamp": ("INT64", "Timestamp microseconds UTC: False"),
        "label": string,
        "score": ("FLOAT", plain),
        "labels.list.element": string,
        "scores.list.element": ("FLOAT", plain),
        "row_id": string,
        "source_uri": string,
        "source_row": ("INT64", plain),
        "token_count": ("INT32", plain),
        "truncated_tokens": ("INT32", plain),
        "shape": string,
        "artifact": string,
        "fingerprint": string,
    }
    assert file.metadata.metadata is None, "no Arrow schema, no pandas metadata"


def _logical(column: Any) -> str:
    kind = json.loads(column.logical_type.to_json())
    unit = f" {kind['timeUnit']} UTC: {kind['isAdjustedToUTC']}" if "timeUnit" in kind else ""
    return f"{kind['Type']}{unit}"
