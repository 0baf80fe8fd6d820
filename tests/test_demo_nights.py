"""The demo's input data: same bytes every time, files that ordinary readers parse, and no review twice."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from demo.inputs import scheduled_nights
from demo.nights import NIGHTS, ODD_LINES, put_local, write_large_night, write_nights
from demo.reference import read_rows, usable
from demo.reviews import load_reviews
from pipeline.airflow_task import partition_date
from pipeline.rejects import REASONS


@pytest.fixture(scope="module")
def objects() -> dict[str, bytes]:
    """Every object of the four nights, by key."""
    found: dict[str, bytes] = {}
    write_nights(found.__setitem__, "lake/reviews")
    return found


def _lines(key: str, data: bytes) -> list[str]:
    """Split at the line feed alone: real reviews contain U+0085, at which `str.splitlines` would cut as well."""
    return (gzip.decompress(data) if key.endswith(".gz") else data).decode().removesuffix("\n").split("\n")


def _records(key: str, data: bytes) -> list[dict[str, Any]]:
    if key.endswith(".parquet"):
        records: list[dict[str, Any]] = pq.read_table(io.BytesIO(data)).to_pylist()
        return records
    return [json.loads(line) for line in _lines(key, data) if line not in ODD_LINES]


def test_keys_are_hive_folders_with_the_extension_of_their_format(objects: dict[str, bytes]) -> None:
    for night in NIGHTS:
        names = [key.rpartition("/")[2] for key in objects if key.startswith(f"lake/reviews/ds={night.ds}/")]
        assert names == [f"reviews-{part}.{night.format}" for part in range(night.files)]
    assert len(objects) == sum(night.files for night in NIGHTS)
    assert {night.format for night in NIGHTS} == {"parquet", "jsonl.gz", "jsonl"}


def test_writing_again_gives_the_same_bytes(objects: dict[str, bytes]) -> None:
    load_reviews.cache_clear()
    again: dict[str, bytes] = {}
    write_nights(again.__setitem__, "lake/reviews/")
    assert again == objects


def test_parquet_files_have_several_row_groups_and_plain_types(objects: dict[str, bytes]) -> None:
    files = [pq.ParquetFile(io.BytesIO(data)) for key, data in objects.items() if key.endswith(".parquet")]
    assert len(files) == 5
    for file in files:
        assert file.num_row_groups >= 2
        assert [str(field.type) for field in file.schema_arrow] == ["string", "string", "string", "int64"]
        assert file.schema_arrow.names == ["review_id", "text", "source", "label"]


def test_every_row_is_a_real_review_and_none_comes_twice(objects: dict[str, bytes]) -> None:
    known = {review.review_id: review for review in load_reviews()}
    rows = [record for key, data in objects.items() for record in _records(key, data)]
    assert max(Counter(row["review_id"] for row in rows).values()) == 1
    assert max(Counter(row["text"] for row in rows).values()) == 1
    for row in rows:
        review = known[row["review_id"]]
        assert (row["text"], row["source"], row["label"]) == (review.text, review.source, review.label)


@pytest.mark.parametrize("night", NIGHTS, ids=lambda night: night.ds)
def test_a_night_has_the_rows_sources_and_share_it_declares(objects: dict[str, bytes], night: Any) -> None:
    keys = [key for key in objects if f"/ds={night.ds}/" in key]
    rows = [record for key in keys for record in _records(key, objects[key])]
    assert len(rows) == night.rows
    assert Counter(row["source"] for row in rows) == {"imdb": 250, "rotten_tomatoes": 750}
    assert sum(row["label"] for row in rows) == pytest.approx(night.rows * night.positive, abs=1)
    # Sources and labels are mixed in every file, as a feed would have them, not one after the other.
    for key in keys:
        assert (
            0.15
            < sum(row["source"] == "imdb" for row in _records(key, objects[key])) / (night.rows / night.files)
            < 0.35
        )


def test_no_imdb_review_of_a_night_was_trained_on(objects: dict[str, bytes]) -> None:
    trained = {review.review_id for review in load_reviews() if review.source == "imdb" and review.for_training}
    assert len(trained) > 3000
    assert not trained & {row["review_id"] for key, data in objects.items() for row in _records(key, data)}


def test_the_odd_night_has_just_the_documented_rejects(tmp_path: Path) -> None:
    write_nights(put_local, str(tmp_path))
    (night,) = [night for night in NIGHTS if night.odd]
    folder = tmp_path / f"ds={night.ds}"
    lines = [line for path in sorted(folder.iterdir()) for line in _lines(path.name, path.read_bytes())]
    assert len(lines) == night.rows + len(ODD_LINES)
    assert [line for line in lines if line in ODD_LINES] == list(ODD_LINES)
    assert len([row for row in read_rows(folder) if usable(row)]) == len(lines) - night.expected_rejects
    unusable = [row["review_id"] for row in read_rows(folder) if not usable(row)]
    assert unusable == ["odd-null-text", "odd-number-text", "odd-no-text"]
    assert {reason for reason in ODD_LINES.values() if reason} <= REASONS.keys()


@pytest.mark.parametrize(("rows", "imdb_share"), [(1, 0.05), (997, 0.25), (2000, 0.0)])
def test_a_large_night_has_the_size_and_mix_asked_for(rows: int, imdb_share: float) -> None:
    objects: dict[str, bytes] = {}
    keys = write_large_night(objects.__setitem__, "x", "2026-11-28", rows, imdb_share=imdb_share, rows_per_file=400)
    assert keys == sorted(objects)
    assert len(keys) == -(-rows // 400)
    records = [record for key in keys for record in _records(key, objects[key])]
    assert len({record["review_id"] for record in records}) == rows
    assert sum(record["source"] == "imdb" for record in records) == int(rows * imdb_share)


def test_a_large_night_repeats_reviews_only_when_they_run_out() -> None:
    objects: dict[str, bytes] = {}
    sentences = sum(review.source == "rotten_tomatoes" for review in load_reviews())
    write_large_night(objects.__setitem__, "x", "2026-11-28", 20_000, imdb_share=0.0)
    counts = Counter(record["text"] for key, data in objects.items() for record in _records(key, data))
    assert len(counts) == sentences
    assert set(counts.values()) <= {20_000 // sentences, 20_000 // sentences + 1}


@pytest.mark.parametrize("hour", range(24))
def test_the_night_that_airflow_starts_by_itself_has_rows_at_any_hour(hour: int) -> None:
    """The schedule's newest interval ends at its last two o'clock; the night is the day on which it began."""
    now = datetime(2026, 12, 1, hour, 30, tzinfo=UTC)
    ended = now.replace(hour=2, minute=0) - timedelta(days=hour < 2)
    night = partition_date(None, None, ended - timedelta(days=1), ended, UTC)
    assert night in {day.isoformat() for day in scheduled_nights(now.date())}
