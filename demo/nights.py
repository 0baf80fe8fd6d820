"""Decides which real reviews arrive on which night, and in which files: the demo's input data.

    python -m demo.nights FOLDER        writes FOLDER/ds=YYYY-MM-DD/... for the four nights

Every night has 1,000 rows, a quarter IMDB reviews that training never saw (up to 2,467 tokens), the rest Rotten
Tomatoes sentences (most of which training did see: accuracy is claimed for held-out rows only, see metrics.json).
Columns: review_id (string, unique over all nights), text (string), source (string), label (int64; 1 positive).
The share of positive reviews differs by night, so that a query over the output has something to show.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from demo.reviews import Review, load_reviews

SCHEMA = pa.schema(
    [
        pa.field("review_id", pa.string(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("source", pa.string()),
        pa.field("label", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Night:
    """What arrives on one date."""

    ds: str
    """The date, YYYY-MM-DD."""
    format: str
    """A key of FORMATS."""
    files: int
    """Objects that the rows are spread over."""
    positive: float
    """Share of rows that people called positive."""
    odd: bool = False
    """Whether ODD_LINES are among the rows."""
    rows: int = 1000

    @property
    def expected_rejects(self) -> int:
        """Rows that no model can judge."""
        return sum(reason is not None for reason in ODD_LINES.values()) if self.odd else 0


NIGHTS = (
    Night("2026-11-24", "parquet", files=2, positive=0.62),
    Night("2026-11-25", "jsonl.gz", files=2, positive=0.55, odd=True),
    Night("2026-11-26", "jsonl", files=1, positive=0.38),
    Night("2026-11-27", "parquet", files=3, positive=0.50),
)
"""Three for the backfill, one more for a single run."""

ODD_LINES = {
    '{"review_id": "odd-null-text", "text": null, "source": "imdb", "label": 1}': "null_text",
    '{"review_id": "odd-empty-text", "text": "", "source": "imdb", "label": 0}': None,
    '{"review_id": "odd-number-text", "text": 10, "source": "imdb", "label": 1}': "wrong_type",
    '{"review_id": "odd-no-text", "source": "rotten_tomatoes", "label": 0}': "missing_column",
    '{"review_id": "odd-cut-short", "text": "The ending was': "malformed_json",
}
"""What real feeds contain, and why each line is rejected; None: an empty text is a text, the model has its say."""


def write_nights(put: Callable[[str, bytes], None], prefix: str, nights: Iterable[Night] = NIGHTS) -> list[str]:
    """Put every night's objects under `<prefix>/ds=YYYY-MM-DD/`; returns their keys. Same bytes every time."""
    keys = []
    chosen = choose_rows()
    for night in nights:
        for name, data in night_files(night, chosen[night.ds]):
            key = f"{prefix.rstrip('/')}/ds={night.ds}/{name}"
            put(key, data)
            keys.append(key)
    return keys


def choose_rows() -> dict[str, list[Review]]:
    """The rows of each of NIGHTS, by date; no review is in two nights."""
    pools: dict[tuple[str, int], Iterator[Review]] = {
        (source, label): iter(
            [
                review
                for review in load_reviews()
                if (review.source, review.label) == (source, label) and not (source == "imdb" and review.for_training)
            ]
        )
        for source in ("imdb", "rotten_tomatoes")
        for label in (0, 1)
    }
    chosen = {}
    for night in NIGHTS:
        rows: list[Review] = []
        imdb = night.rows // 4
        for source, count in (("imdb", imdb), ("rotten_tomatoes", night.rows - imdb)):
            positive = round(count * night.positive)
            rows += islice(pools[source, 1], positive)
            rows += islice(pools[source, 0], count - positive)
        # By id, which is a digest after the source: only the digest mixes the sources and labels.
        chosen[night.ds] = sorted(rows, key=lambda review: review.review_id.rpartition("-")[2])
    return chosen


def night_files(night: Night, rows: list[Review]) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file of a night. Raises KeyError for an unknown format."""
    encode = FORMATS[night.format]
    share = -(-len(rows) // night.files)
    for part in range(night.files):
        records = [asdict(review) for review in rows[part * share : (part + 1) * share]]
        yield f"reviews-{part}.{night.format}", encode(records, tuple(ODD_LINES) if night.odd and part == 0 else ())


def encode_parquet(records: list[dict[str, Any]], odd_lines: tuple[str, ...] = ()) -> bytes:
    """Several row groups a file, as exporters write them. Raises ValueError for odd lines: they are no records."""
    if odd_lines:
        raise ValueError("Parquet cannot hold odd lines; choose jsonl or jsonl.gz for this night")
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records, schema=SCHEMA), sink, row_group_size=200, compression="zstd")
    return sink.getvalue()


def encode_jsonl(records: list[dict[str, Any]], odd_lines: tuple[str, ...] = ()) -> bytes:
    """One JSON object a line, UTF-8, the odd lines spread among them."""
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    for count, line in enumerate(odd_lines, start=1):
        lines.insert(count * len(lines) // (len(odd_lines) + 1), line)
    return "".join(f"{line}\n" for line in lines).encode()


def encode_jsonl_gz(records: list[dict[str, Any]], odd_lines: tuple[str, ...] = ()) -> bytes:
    """`encode_jsonl`, compressed without a time stamp."""
    return gzip.compress(encode_jsonl(records, odd_lines), mtime=0)


FORMATS: dict[str, Callable[[list[dict[str, Any]], tuple[str, ...]], bytes]] = {
    "parquet": encode_parquet,
    "jsonl": encode_jsonl,
    "jsonl.gz": encode_jsonl_gz,
}


def write_large_night(
    put: Callable[[str, bytes], None],
    prefix: str,
    ds: str,
    rows: int,
    *,
    imdb_share: float = 0.05,
    rows_per_file: int = 25_000,
) -> list[str]:
    """Put a night of any size (20,000 and 100,000 rows in the tests of memory and load) as Parquet; returns the keys.

    Real reviews, repeated once they run out; the repeats have ids of their own. A whole review costs about 17 ms of
    one core (OpenVINO bf16), a sentence about 1.4 ms: `imdb_share` decides how long such a night takes.
    """
    whole = [review for review in load_reviews() if review.source == "imdb"]
    sentences = [review for review in load_reviews() if review.source != "imdb"]
    every = round(1 / imdb_share) if imdb_share else rows + 1
    long, short = cycle(whole), cycle(sentences)
    keys = []
    for part, start in enumerate(range(0, rows, rows_per_file)):
        records = []
        for number in range(start, min(start + rows_per_file, rows)):
            record = asdict(next(long) if number % every == every - 1 else next(short))
            records.append(record | {"review_id": f"large-{number:09d}"})
        keys.append(f"{prefix.rstrip('/')}/ds={ds}/reviews-{part}.parquet")
        put(keys[-1], encode_parquet(records))
    return keys


def put_local(key: str, data: bytes) -> None:
    """A `put` for local folders."""
    path = Path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def main() -> int:
    """Write all four nights into a local folder; 5 when the packaged reviews are missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder")
    try:
        keys = write_nights(put_local, parser.parse_args().folder)
    except FileNotFoundError as missing:
        sys.stderr.write(f"{missing}\n")
        return 5
    sys.stdout.write("".join(f"{key}\n" for key in keys))
    return 0


if __name__ == "__main__":
    sys.exit(main())
