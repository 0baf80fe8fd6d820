"""Puts the demo's model and nights into S3, and leaves alone what lies there already."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path

from botocore.exceptions import ClientError

from demo.nights import NIGHTS, Night, choose_rows, night_files, write_nights
from demo.sentiment_model import build_sentiment_model
from demo.servers.seaweed import S3Endpoint

MODEL_PREFIX = "models/reviews-sentiment"
REVIEWS_PREFIX = "reviews"
_LAST_NIGHT_ROWS = 300


@dataclass(frozen=True, slots=True)
class Uploaded:
    """How many objects were written, and how many were there with the same content."""

    written: int = 0
    reused: int = 0

    def __str__(self) -> str:
        if not self.written:
            return f"{self.reused} objects, all there from the last run"
        return f"{self.written} objects" + (f", {self.reused} more were there" if self.reused else "")


class Uploader:
    """Puts objects into one bucket, and counts."""

    def __init__(self, s3: S3Endpoint) -> None:
        self._client = s3.client()
        self._bucket = s3.bucket
        self.uploaded = Uploaded()

    def put(self, key: str, data: bytes) -> None:
        """Write the object, unless it is there with this content: its ETag is its MD5."""
        digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
        try:
            known = self._client.head_object(Bucket=self._bucket, Key=key)["ETag"].strip('"')
        except ClientError as error:
            if error.response["Error"]["Code"] not in ("404", "NoSuchKey"):
                raise
            known = None
        if known == digest:
            self.uploaded = replace(self.uploaded, reused=self.uploaded.reused + 1)
            return
        self._client.put_object(Bucket=self._bucket, Key=key, Body=data)
        self.uploaded = replace(self.uploaded, written=self.uploaded.written + 1)


def put_model(s3: S3Endpoint, folder: Path) -> Uploaded:
    """Build the sentiment model in `folder` and copy it to s3://<bucket>/models/reviews-sentiment/."""
    model = build_sentiment_model(folder / "reviews-sentiment")
    uploader = Uploader(s3)
    for path in sorted(model.iterdir()):
        uploader.put(f"{MODEL_PREFIX}/{path.name}", path.read_bytes())
    return uploader.uploaded


def put_nights(s3: S3Endpoint, last_nights: Sequence[date]) -> Uploaded:
    """Put the fixed nights, and a short one for each of `last_nights`, to s3://<bucket>/reviews/ds=YYYY-MM-DD/.

    Airflow starts the newest scheduled night by itself as soon as a DAG is unpaused; so it finds reviews as well.
    """
    uploader = Uploader(s3)
    write_nights(uploader.put, REVIEWS_PREFIX)
    for ds in {night.isoformat() for night in last_nights} - {night.ds for night in NIGHTS}:
        short = Night(ds, "parquet", files=1, positive=NIGHTS[-1].positive, rows=_LAST_NIGHT_ROWS)
        rows = choose_rows()[NIGHTS[-1].ds][: short.rows]
        for name, data in night_files(short, rows):
            uploader.put(f"{REVIEWS_PREFIX}/ds={ds}/{name}", data)
    return uploader.uploaded


def scheduled_nights(today: date) -> tuple[date, date]:
    """The nights that a daily schedule may run for today: yesterday, and until its hour the day before."""
    return today - timedelta(days=2), today - timedelta(days=1)
