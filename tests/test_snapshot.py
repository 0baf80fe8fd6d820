"""What the night's input is: which objects a URI means, and that the same objects give the same digest."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo.servers.seaweed import S3Endpoint
from pipeline.context import Context
from pipeline.errors import JobError, StorageError
from pipeline.job import parse_job
from pipeline.objects import Objects
from pipeline.snapshot import Snapshot, list_input, load_snapshot, take_snapshot

NAMES = ["a.jsonl", "b.jsonl", "b.jsonl.bak", "deep/c.jsonl", "_tmp/d.jsonl", ".hidden", "deep/_SUCCESS", "empty.jsonl"]


def context(base: str, uri: str, **options: Any) -> Context:
    data = {
        "name": "x",
        "model": {"uri": "m"},
        "input": {"uri": uri, "text": "text", **options},
        "output": {"uri": f"{base}/out"},
    }
    return Context(parse_job(data, "x"), "2026-11-30", Objects(), Path("unused"))


@pytest.fixture(params=["local", "s3"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path)
    endpoint: S3Endpoint = request.getfixturevalue("s3")
    return f"s3://{endpoint.bucket}"


def test_a_name_with_the_signs_of_a_glob_is_first_of_all_a_name(base: str) -> None:
    objects = Objects()
    for name in (
        "odd[1]?/a.jsonl",
        "odd1x/b.jsonl",
        "odd1x/[c].jsonl",
        "odd1x/c.jsonl",
        "odd1x/_d.jsonl",
        "_[e]/e.jsonl",
    ):
        objects.put(f"{base}/in/{name}", b"{}\n")
    table = {
        "odd[1]?/": ["odd[1]?/a.jsonl"],
        "odd[1]?/a.jsonl": ["odd[1]?/a.jsonl"],
        "odd[1]?/*.jsonl": ["odd1x/[c].jsonl", "odd1x/b.jsonl", "odd1x/c.jsonl"],
        "odd1x/[c].jsonl": ["odd1x/[c].jsonl"],
        "odd1x/[bc].jsonl": ["odd1x/b.jsonl", "odd1x/c.jsonl"],
        "odd[2]?/": [],
        "_[e]/": ["_[e]/e.jsonl"],
        "*.jsonl": ["odd1x/[c].jsonl", "odd1x/b.jsonl", "odd1x/c.jsonl", "odd[1]?/a.jsonl"],
    }
    for uri, found in table.items():
        assert [info.uri.removeprefix(f"{base}/in/") for info in list_input(objects, f"{base}/in/{uri}")] == found, uri


def test_what_a_uri_means(base: str) -> None:
    """A folder, a glob or one object. An empty object is no data, bookkeeping only where its folder is asked for."""
    objects = Objects()
    for name in NAMES:
        objects.put(f"{base}/in/{name}", b"" if name.startswith("empty") else b"{}\n")
    table = {
        "": ["a.jsonl", "b.jsonl", "b.jsonl.bak", "deep/c.jsonl"],
        "*.jsonl": ["a.jsonl", "b.jsonl", "deep/c.jsonl"],
        "[b-z]*.jsonl": ["b.jsonl", "deep/c.jsonl"],
        "?.jsonl": ["a.jsonl", "b.jsonl"],
        "b.jsonl": ["b.jsonl"],
        "b": [],
        "deep/": ["deep/c.jsonl"],
        "deep": [],
        "_tmp/": ["_tmp/d.jsonl"],
        "empty.jsonl": [],
        "none/": [],
    }
    for uri, found in table.items():
        listed = [info.uri.removeprefix(f"{base}/in/") for info in list_input(objects, f"{base}/in/{uri}")]
        assert listed == found, uri


def test_the_same_objects_give_the_same_snapshot(base: str) -> None:
    made = context(base, f"{base}/in/{{ds}}/")
    objects = made.objects
    objects.put(f"{base}/in/2026-11-30/b.jsonl", b'{"text": "b"}\n')
    objects.put(f"{base}/in/2026-11-30/a.jsonl.gz", gzip.compress(b'{"text": "a"}\n', mtime=0))
    objects.put(f"{base}/in/2026-11-29/c.jsonl", b'{"text": "other night"}\n')
    uri, snapshot = take_snapshot(made)
    assert [info.uri.rpartition("/")[2] for info in snapshot.objects] == ["a.jsonl.gz", "b.jsonl"]
    assert (snapshot.ds, snapshot.formats, len(snapshot.splits)) == ("2026-11-30", ("jsonl", "jsonl"), 1)
    assert take_snapshot(made) == (uri, snapshot)
    assert load_snapshot(Objects(), uri) == snapshot
    assert Snapshot.from_json(json.loads(json.dumps(snapshot.to_json()))) == snapshot
    objects.put(f"{base}/in/2026-11-30/b.jsonl", b'{"text": "c"}\n')
    changed_uri, changed = take_snapshot(made)
    assert changed_uri != uri
    assert changed.digest != snapshot.digest
    with pytest.raises(StorageError, match="changed since"):
        objects.get(snapshot.objects[1].uri, etag=snapshot.objects[1].etag)


def test_touching_a_local_file_changes_nothing(tmp_path: Path) -> None:
    made = context(str(tmp_path), f"{tmp_path}/in/")
    made.objects.put(f"{tmp_path}/in/x.jsonl", b"{}\n")
    before = take_snapshot(made)
    (tmp_path / "in" / "x.jsonl").touch()
    assert take_snapshot(context(str(tmp_path), f"{tmp_path}/in/")) == before


def test_row_groups_and_files_of_several_formats_become_splits(tmp_path: Path) -> None:
    made = context(str(tmp_path), f"{tmp_path}/in/")
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": ["x"] * 250_000}), tmp_path / "in" / "a.parquet", row_group_size=50_000)
    (tmp_path / "in" / "b.csv").write_text("text\nx\n")
    _, snapshot = take_snapshot(made)
    pieces = [[(piece.object, piece.start, piece.stop) for piece in split.pieces] for split in snapshot.splits]
    assert pieces == [[(0, 0, 100_000)], [(0, 100_000, 200_000)], [(0, 200_000, 250_000), (1, 0, 7)]]


def test_the_job_says_how_large_a_split_is(tmp_path: Path) -> None:
    """How the input is cut decides the output's parts, so it is part of the digest."""
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"text": ["x"] * 1_000}), folder / "a.parquet", row_group_size=100)
    (folder / "b.jsonl").write_text(("x" * 1023 + "\n") * 2560)

    def split_sizes(**sizes: int) -> tuple[list[int], str]:
        _, snapshot = take_snapshot(context(str(tmp_path), f"{folder}/", **sizes))
        return [len(split.pieces) for split in snapshot.splits], snapshot.digest

    whole, digest = split_sizes()
    assert whole == [2]
    cut, cut_digest = split_sizes(split_rows=300, split_mb=1)
    assert len(cut) == 4 + 9, "three row groups at a time, then at most about 300 lines at a time"
    assert cut_digest != digest


def test_a_night_without_input_fails_or_is_empty_as_the_job_says(base: str) -> None:
    with pytest.raises(JobError, match=r"in/: no input objects for ds=2026-11-30; .*input.when_missing: empty"):
        take_snapshot(context(base, f"{base}/in/"))
    _, snapshot = take_snapshot(context(base, f"{base}/in/", when_missing="empty"))
    assert (snapshot.objects, snapshot.splits) == ((), ())


def test_mistakes_show_before_anything_is_stored(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("body\nx\n")
    with pytest.raises(JobError, match=r"a.csv: no column 'text'; its header is: body"):
        take_snapshot(context(str(tmp_path), f"{folder}/"))
    (folder / "a.csv").rename(folder / "a.xlsx")
    with pytest.raises(JobError, match=r"a.xlsx: no known extension"):
        take_snapshot(context(str(tmp_path), f"{folder}/"))
    assert not (tmp_path / "out").exists()
