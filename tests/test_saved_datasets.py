"""Datasets saved with save_to_disk read as `datasets` itself reads them, cut by record batches, from files and S3."""

from __future__ import annotations

import itertools
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, disable_progress_bars, load_from_disk

from demo.servers.seaweed import S3Endpoint
from pipeline.context import Context
from pipeline.errors import JobError, StorageError
from pipeline.job import parse_job
from pipeline.objects import Objects
from pipeline.snapshot import Snapshot, take_snapshot
from pipeline.sources import source_rows, source_units
from pipeline.splits import Piece

disable_progress_bars()


def context(uri: str, out: str, **options: Any) -> Context:
    data = {
        "name": "x",
        "model": {"uri": "m"},
        "input": {"uri": uri, "text": "text", **options},
        "output": {"uri": out},
    }
    return Context(parse_job(data, "x"), "2026-11-30", Objects(), Path("unused"))


TEXT_SPEC = context("in/", "out").job.input
GOLD = {"column": "label", "type": "int32"}


def rows_of(made: Context, snapshot: Snapshot) -> list[Any]:
    pieces = [piece for split in snapshot.splits for piece in split.pieces]
    return [
        row.values or (row.fault and row.fault.reason)
        for piece in pieces
        for row in source_rows(
            made.objects, snapshot.objects[piece.object], snapshot.formats[piece.object], piece, made.job.input
        )
    ]


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    rows = 3500
    columns = {
        "text": [f"text {k}" for k in range(rows)],
        "meta": [{"title": f"title {k}", "n": k} for k in range(rows)],
        "label": [k % 2 for k in range(rows)],
    }
    return Dataset.from_dict(columns).cast_column("label", ClassLabel(names=["neg", "pos"]))


MADE = {
    "plain": lambda data: data,
    "three files": lambda data: data,
    "selected": lambda data: data.select(range(3000, 10, -7)),
    "shuffled": lambda data: data.shuffle(seed=4),
    "filtered": lambda data: data.filter(lambda row: row["label"] == 1),
    "renamed": lambda data: data.remove_columns("meta").add_column("meta", [{"title": "new"}] * len(data)),
    "sorted": lambda data: data.sort("text", reverse=True),
    "formatted": lambda data: data.with_format("numpy", columns=["label"]),
    "concatenated shard": lambda data: data.shard(num_shards=4, index=1),
}


@pytest.mark.parametrize("kind", MADE)
def test_rows_are_those_that_load_from_disk_gives(tmp_path: Path, dataset: Dataset, kind: str) -> None:
    made = MADE[kind](dataset)
    made.save_to_disk(tmp_path / "saved", num_shards=3 if kind == "three files" else None)
    expected = load_from_disk(str(tmp_path / "saved")).with_format(None)
    job = context(f"{tmp_path}/saved/", f"{tmp_path}/out", keep={"title": {"column": "meta.title"}, "gold": GOLD})
    _, snapshot = take_snapshot(job)
    assert rows_of(job, snapshot) == [
        {"text": row["text"], "meta.title": row["meta"]["title"], "label": row["label"]} for row in expected
    ]
    assert snapshot.objects[0].uri.endswith("/state.json")


@pytest.mark.parametrize("uri", ["saved", "saved/"])
def test_splits_of_a_dict_on_s3_are_chosen_and_pinned(
    tmp_path: Path, dataset: Dataset, s3: S3Endpoint, uri: str
) -> None:
    DatasetDict({"train": dataset, "test": dataset.select(range(5))}).save_to_disk(tmp_path / "saved")
    objects = Objects()
    for path in (tmp_path / "saved").rglob("*"):
        if path.is_file():
            objects.put(f"s3://{s3.bucket}/{path.relative_to(tmp_path)}", path.read_bytes())
    base = f"s3://{s3.bucket}"
    made = context(f"{base}/{uri}", f"{base}/out", format="datasets", split="test")
    _, snapshot = take_snapshot(made)
    assert [info.uri for info in snapshot.objects] == [
        f"{base}/saved/test/state.json",
        f"{base}/saved/test/data-00000-of-00001.arrow",
    ]
    assert rows_of(made, snapshot) == [{"text": f"text {k}"} for k in range(5)]
    for options, message in (({}, "not set; choose one of train, test"), ({"split": "dev"}, "dev; choose one of")):
        with pytest.raises(JobError, match=f"saved: a DatasetDict: input.split is {message}"):
            take_snapshot(context(f"{base}/{uri}", f"{base}/out", format="datasets", **options))
    objects.put(snapshot.objects[1].uri, (tmp_path / "saved/train/data-00000-of-00001.arrow").read_bytes())
    with pytest.raises(StorageError, match="changed since the run pinned it"):
        rows_of(made, snapshot)


def test_record_batches_are_the_units(tmp_path: Path, dataset: Dataset) -> None:
    """Their headers, read by our own few lines, say what pyarrow says."""
    dataset.save_to_disk(tmp_path / "saved")
    path = tmp_path / "saved/data-00000-of-00001.arrow"
    objects = Objects()
    made = context(f"{tmp_path}/saved/", f"{tmp_path}/out")
    units = list(source_units(objects, objects.head(str(path)), "datasets", 1, made.job.input))
    with pa.OSFile(str(path)) as file:
        pa.ipc.read_message(file)  # the schema
        bounds = [file.tell()]
        rows = []
        with pa.ipc.open_stream(path.read_bytes()) as stream:
            rows = [batch.num_rows for batch in stream]
        for _ in rows:
            pa.ipc.read_message(file)
            bounds.append(file.tell())
    assert [unit.rows for unit in units] == rows == [1000, 1000, 1000, 500]
    assert [(unit.start, unit.stop) for unit in units] == list(itertools.pairwise(bounds))
    (row, *_) = source_rows(objects, objects.head(str(path)), "datasets", Piece(1, bounds[2], bounds[3]), TEXT_SPEC)
    assert row.values == {"text": "text 2000"}


def test_memory_is_that_of_a_batch(tmp_path: Path) -> None:
    def rows() -> Any:
        for k in range(30_000):
            yield {"text": f"{k} " * 300}

    Dataset.from_generator(rows, cache_dir=str(tmp_path / "cache")).save_to_disk(tmp_path / "saved")
    path = tmp_path / "saved/data-00000-of-00001.arrow"
    objects = Objects()
    info = objects.head(str(path))
    assert info.size_bytes > 48 << 20
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    units = list(source_units(objects, info, "datasets", 0, TEXT_SPEC))
    count = arrow_peak = 0
    for _ in source_rows(objects, info, "datasets", Piece(0, units[0].start, units[-1].stop), TEXT_SPEC):
        count += 1
        arrow_peak = max(arrow_peak, pa.total_allocated_bytes() - before) if count % 1000 == 0 else arrow_peak
    assert count == 30_000
    assert tracemalloc.get_traced_memory()[1] + arrow_peak < 40 << 20
    tracemalloc.stop()


def test_an_empty_dataset_is_an_empty_night(tmp_path: Path) -> None:
    Dataset.from_dict({"text": []}).save_to_disk(tmp_path / "saved")
    made = context(f"{tmp_path}/saved/", f"{tmp_path}/out")
    _, snapshot = take_snapshot(made)
    assert (len(snapshot.objects), snapshot.splits) == (1, ())


def test_a_dataset_and_other_files_of_a_night_are_all_read(tmp_path: Path, dataset: Dataset) -> None:
    dataset.select(range(2)).save_to_disk(tmp_path / "in/hf")
    (tmp_path / "in/more.jsonl").write_text('{"text": "a line"}\n')
    made = context(f"{tmp_path}/in/", f"{tmp_path}/out")
    _, snapshot = take_snapshot(made)
    assert rows_of(made, snapshot) == [{"text": "text 0"}, {"text": "text 1"}, {"text": "a line"}]
    with pytest.raises(JobError, match=r"more.jsonl: not part of a dataset saved with save_to_disk"):
        take_snapshot(context(f"{tmp_path}/in/", f"{tmp_path}/out", format="datasets"))


def test_layouts_that_are_refused(tmp_path: Path, dataset: Dataset) -> None:
    dataset.select(range(20)).save_to_disk(tmp_path / "saved", num_shards=2)
    saved = tmp_path / "saved"
    state = json.loads((saved / "state.json").read_text())

    def refused(message: str, **options: Any) -> None:
        with pytest.raises(JobError, match=message):
            take_snapshot(context(f"{saved}/", f"{tmp_path}/out", **options))

    refused("input.split is 'train', but this is one dataset without splits; remove it", split="train")
    refused("no column 'body'; it has: text, meta.title, meta.n, label", text="body")
    (saved / "state.json").write_text(json.dumps(state | {"_indices_data_files": [{"filename": "indices.arrow"}]}))
    refused("state.json: _indices_data_files selects or reorders rows, which only old versions")
    old = [{"filename": "data-00000-of-00002.arrow", "skip": 0, "take": 3}]
    (saved / "state.json").write_text(json.dumps(state | {"_data_files": old}))
    refused("state.json: _data_files selects or reorders rows")
    (saved / "state.json").write_text(json.dumps(state | {"_data_files": [{"filename": "gone.arrow"}]}))
    refused("state.json: names gone.arrow, which is not there")
    for broken in ("{", "[]", '{"_data_files": 3}'):
        (saved / "state.json").write_text(broken)
        refused("state.json: (not valid JSON|names no data files)")
    (saved / "state.json").unlink()
    refused("data-00000-of-00002.arrow: no state.json beside it: the dataset was not saved to its end")
    (tmp_path / "x.jsonl").write_text("{}\n")
    with pytest.raises(JobError, match=r"x.jsonl: input.split is 'train', but this is no saved dataset"):
        take_snapshot(context(f"{tmp_path}/x.jsonl", f"{tmp_path}/out", split="train"))


def test_a_damaged_arrow_file_is_an_error_that_names_it(tmp_path: Path, dataset: Dataset) -> None:
    """Seeded damage anywhere: the file reads, or it is a JobError; never another exception, never a crash."""
    dataset.select(range(1200)).save_to_disk(tmp_path / "saved")
    path = tmp_path / "saved/data-00000-of-00001.arrow"
    made = context(f"{tmp_path}/saved/", f"{tmp_path}/out", keep={"title": {"column": "meta.title"}, "gold": GOLD})
    whole = path.read_bytes()
    rng = random.Random(1)
    refused = 0
    for attempt in range(300):
        data = bytearray(whole if attempt % 3 else whole[: rng.randrange(4, len(whole))])
        for _ in range(3):
            at = rng.randrange(len(data)) if attempt % 2 else rng.randrange(min(len(data), 2000))
            data[at] ^= rng.randrange(1, 256)
        path.write_bytes(data)
        try:
            _, snapshot = take_snapshot(made)
            rows_of(made, snapshot)
        except JobError as error:
            assert str(path) in str(error)  # noqa: PT017 - some read well
            refused += 1
    assert refused > 100
    for size in (0, 8, 100, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(JobError, match=r"data-00000-of-00001.arrow"):
            take_snapshot(made)


def test_text_that_is_not_utf8_is_a_fault_of_its_row(tmp_path: Path, dataset: Dataset) -> None:
    dataset.select(range(3)).save_to_disk(tmp_path / "saved")
    path = tmp_path / "saved/data-00000-of-00001.arrow"
    path.write_bytes(path.read_bytes().replace(b"text 1", b"tex\xff 1"))
    made = context(f"{tmp_path}/saved/", f"{tmp_path}/out")
    assert rows_of(made, take_snapshot(made)[1]) == [{"text": "text 0"}, "invalid_utf8", {"text": "text 2"}]


def test_dictionary_batches_are_refused(tmp_path: Path, dataset: Dataset) -> None:
    dataset.select(range(3)).save_to_disk(tmp_path / "saved")
    table = pa.table({"text": pa.array(["a", "b"]).dictionary_encode()})
    with pa.ipc.new_stream(tmp_path / "saved/data-00000-of-00001.arrow", table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(JobError, match="a message of kind 2; `datasets` writes no dictionaries"):
        take_snapshot(context(f"{tmp_path}/saved/", f"{tmp_path}/out"))
