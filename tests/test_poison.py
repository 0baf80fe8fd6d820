"""The whole flow over the poison corpus: each bad row is a reject with its reason, each good row as without them."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard
from datasets import Dataset, disable_progress_bars
from poison_rows import INPUT, Object, csv_object, jsonl_object, tables, text_object

from demo.servers.seaweed import S3Endpoint
from jobs import DS, jsonl, make_home
from pipeline.objects import Objects
from pipeline.rejects import INFER_REASONS, MAX_PAYLOAD_CHARS, REASONS
from pipeline.run_plan import load_run

disable_progress_bars()
COMPRESS = {".gz": gzip.compress, "zst": zstandard.compress}
JOB: dict[str, Any] = {"input": INPUT, "truncation": "reject"}
TEXT_JOB: dict[str, Any] = {"input": {"id": None, "keep": {}}, "truncation": "reject"}
Row = dict[str, Any]


def line_objects() -> dict[str, Object]:
    return {
        "a.jsonl": jsonl_object("plain"),
        "b.jsonl.gz": jsonl_object("gzip"),
        "c.jsonl.zst": jsonl_object("zstd"),
        "d.csv": csv_object("csv", ","),
        "e.tsv.gz": csv_object("tsv", "\t"),
    }


def put(night: str, objects: dict[str, Object]) -> dict[str, Object]:
    """Store them under their names; the same by URI."""
    store = Objects()
    for name, made in objects.items():
        data = made.data if isinstance(made.data, bytes) else parquet_bytes(made.data)
        store.put(f"{night}/{name}", COMPRESS.get(name[-3:], bytes)(data))
    return {f"{night}/{name}": made for name, made in objects.items()}


def put_datasets(night: str, folder: Path) -> dict[str, Object]:
    """Each table saved with `datasets` and uploaded; by the URI of its only data file."""
    corpus = {}
    store = Objects()
    for number, made in enumerate(tables("datasets")):
        saved = folder / f"g{number:02}"
        Dataset(made.data).save_to_disk(saved)
        for path in saved.iterdir():
            store.put(f"{night}/{saved.name}/{path.name}", path.read_bytes())
        corpus[f"{night}/{saved.name}/data-00000-of-00001.arrow"] = made
    return corpus


def parquet_bytes(table: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


def parquet_objects() -> dict[str, Object]:
    return {f"f{number:02}.parquet": made for number, made in enumerate(tables("parquet"))}


def published_rows(root: str, table: str) -> list[Row]:
    objects = Objects()
    return [
        row
        for uri in objects.list(f"{root}/out/{table}/")
        for row in pq.read_table(io.BytesIO(objects.get(uri))).to_pylist()
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> dict[str, Row]:
    """Predictions of a run over all good rows and no other, by row id."""
    folder = tmp_path_factory.mktemp("alone")
    made: Iterable[Object] = [*line_objects().values(), *tables("parquet"), *tables("datasets")]
    rows = {str(values["id"]): values for item in made for values in item.good.values()}
    for row, values in text_object().good.items():
        rows[f"text-{row}"] = values | {"id": f"text-{row}"}
    Objects().put(f"{folder}/in/ds={DS}/good.jsonl", jsonl(list(rows.values())))
    report = make_home(folder, tiny_model, str(folder), **JOB).run()
    assert (report["rows"], report["rejected"]) == (len(rows), 0)
    return {row["row_id"]: row for row in published_rows(str(folder), "predictions")}


def check_corpus(corpus: dict[str, Object], root: str, alone: dict[str, Row]) -> None:
    """What was published of the corpus: every fault as expected, every good row as in the run without faults."""
    expected = {(uri, row): found for uri, made in corpus.items() for row, found in made.rejects.items()}
    rejects = published_rows(root, "rejects")
    assert [(row["source_uri"], row["source_row"], row["reason"]) for row in rejects] == [
        (*key, reason) for key, (reason, _) in expected.items()
    ]
    for row, (key, (_, payload)) in zip(rejects, expected.items(), strict=True):
        assert payload in row["payload"], key
        assert len(row["payload"]) <= MAX_PAYLOAD_CHARS
        assert len(row["message"]) < 1000
        assert row["stage"] == ("tokenize" if row["reason"] == "too_long" else "read")
    good = [(uri, row, values) for uri, made in corpus.items() for row, values in made.good.items()]
    predictions = published_rows(root, "predictions")
    own = {"source_uri", "source_row", "fingerprint", "row_id"}
    # Where the last rows of a shape run depends on how many there are, and so may a score's last bits.
    own |= {"shape", "artifact", "score"}
    for found, (uri, row, values) in zip(predictions, good, strict=True):
        assert (found["source_uri"], found["source_row"]) == (uri, row)
        assert found["row_id"] == str(values.get("id", f"{uri}#{row}"))
        wanted = alone[str(values.get("id", f"text-{row}"))]
        assert {name: item for name, item in found.items() if name not in own}.items() <= wanted.items(), (uri, row)
        assert found["score"] == pytest.approx(wanted["score"], abs=1e-5)


OF_BATCH_FILES = {"bad_request", "bad_endpoint", "unsupported_field", "unknown_model", "duplicate_id"}


def test_every_format_at_once_over_s3(tmp_path: Path, tiny_model: Path, s3: S3Endpoint, alone: dict[str, Row]) -> None:
    root = f"s3://{s3.bucket}/job"
    night = f"{root}/in/ds={DS}"
    others = put(night, line_objects() | parquet_objects())
    corpus = put_datasets(night, tmp_path / "saved") | others  # a night's datasets come first
    count = sum(len(made.rejects) for made in corpus.values())
    reasons = {reason for made in corpus.values() for reason, _ in made.rejects.values()}
    assert count > 300
    assert set(REASONS) - reasons == {"no_tokens", "bad_messages", *OF_BATCH_FILES, *INFER_REASONS}, "of other jobs"
    home = make_home(tmp_path, tiny_model, root, reject_budget={"share": 1.0}, **JOB)
    assert home.run()["rejected"] == count
    check_corpus(corpus, root, alone)


def test_text_lines(tmp_path: Path, tiny_model: Path, alone: dict[str, Row]) -> None:
    corpus = put(f"{tmp_path}/in/ds={DS}", {name: text_object() for name in ("a.txt", "b.txt.gz", "c.txt.zst")})
    make_home(tmp_path, tiny_model, str(tmp_path), reject_budget={"share": 1.0}, **TEXT_JOB).run()
    check_corpus(corpus, str(tmp_path), alone)


def test_objects_that_are_cut_into_many_splits(tmp_path: Path, tiny_model: Path, alone: dict[str, Row]) -> None:
    """Faults, row numbers and values do not depend on where an object is cut."""
    objects = line_objects() | parquet_objects()
    del objects["a.jsonl"]  # plain lines are cut by an estimate, which its longest one would spoil
    corpus = put(f"{tmp_path}/in/ds={DS}", objects)
    options = JOB | {"input": {**INPUT, "split_rows": 4, "split_mb": 1}}
    home = make_home(tmp_path, tiny_model, str(tmp_path), reject_budget={"share": 1.0}, **options)
    home.run()
    report = json.loads((tmp_path / f"out/reports/ds={DS}/report.json").read_bytes())
    context = home.context()
    assert load_run(context.objects, context.layout.run(DS, report["fingerprint"])).parts > 60
    check_corpus(corpus, str(tmp_path), alone)
