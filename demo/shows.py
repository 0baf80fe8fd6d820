"""Which jobs `make demo` can show: what each needs before it runs, which nights it runs, and what DuckDB then says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from demo.chat_model import build_chat_model
from demo.inputs import put_model, put_nights, scheduled_nights
from demo.nights import NIGHTS, choose_rows, night_files, put_local
from demo.query import POSITIVE_SHARE, positive_share
from demo.servers.seaweed import S3Endpoint

ROOT = Path(__file__).parents[1]
SUMMARY_ROWS = 160
"""Of the night that is summarised: one to three minutes of two cores."""
SUMMARY_FOLDER = ROOT / ".demo"
"""Where jobs/reviews_summary.yaml finds and leaves its data: no store is needed to run it by hand."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Show:
    """One job of the demo."""

    job: Path
    nights: tuple[str, ...]
    scheduled: bool
    """Whether the DAG has a schedule, so that Airflow can backfill it; else each night is triggered."""
    prepare: Callable[[S3Endpoint, Path, Say], None]
    """Puts model and nights where the job looks for them, what lies there already excepted."""
    answer: Callable[[S3Endpoint], list[str]]
    """Shows a query and what it says; returns the nights that it found."""

    @property
    def dag_id(self) -> str:
        return self.job.stem


def put_sentiment_inputs(s3: S3Endpoint, folder: Path, say: Say) -> None:
    say(f"sentiment model in s3://{s3.bucket}/models/reviews-sentiment/: {put_model(s3, folder / 'models')}")
    last_nights = scheduled_nights(datetime.now(UTC).date())
    say(f"reviews of {len(NIGHTS)} nights in s3://{s3.bucket}/reviews/: {put_nights(s3, last_nights)}")


def show_positive_share(s3: S3Endpoint) -> list[str]:
    first, last = SENTIMENT.nights[0], SENTIMENT.nights[-1]
    sys.stdout.write(f"\n{POSITIVE_SHARE.format(bucket=s3.bucket, first=first, last=last)}\n\n")
    sys.stdout.write("ds          reviews  positive\n")
    found = positive_share(s3, first, last)
    for ds, reviews, share in found:
        sys.stdout.write(f"{ds}  {reviews:7d}  {share:8.4f}\n")
    return [ds for ds, _, _ in found]


def put_summary_inputs(s3: S3Endpoint, folder: Path, say: Say) -> None:
    del s3, folder  # this job reads and writes local folders
    model = build_chat_model(SUMMARY_FOLDER / "models" / "smollm2")
    say(f"SmolLM2-135M-Instruct in {model.relative_to(ROOT)}")
    night = NIGHTS[0]
    target = SUMMARY_FOLDER / "nights" / f"ds={night.ds}"
    if not target.exists():
        for name, data in night_files(night, choose_rows()[night.ds][:SUMMARY_ROWS]):
            put_local(str(target / name), data)
    say(f"reviews of {night.ds} in {target.relative_to(ROOT)}")


SUMMARIES = """\
SELECT ds, count(*) AS reviews, avg(output_tokens) AS tokens, avg((finish_reason = 'stop')::INT) AS ended
FROM read_parquet('{folder}/reviews_summary/predictions/ds=*/*.parquet', hive_partitioning = true)
GROUP BY ds ORDER BY ds"""
EXAMPLES = """\
SELECT source, text FROM read_parquet('{folder}/reviews_summary/predictions/ds={ds}/*.parquet')
WHERE finish_reason = 'stop' ORDER BY row_id LIMIT 3"""


def show_summaries(s3: S3Endpoint) -> list[str]:
    del s3
    folder = SUMMARY_FOLDER.relative_to(ROOT)
    sys.stdout.write(f"\n{SUMMARIES.format(folder=folder)}\n\n")
    with duckdb.connect() as connection:
        found = connection.execute(SUMMARIES.format(folder=SUMMARY_FOLDER)).fetchall()
        texts = connection.execute(EXAMPLES.format(folder=SUMMARY_FOLDER, ds=SUMMARY.nights[0])).fetchall()
    sys.stdout.write("ds          reviews  tokens   ended\n")
    for ds, reviews, tokens, ended in found:
        sys.stdout.write(f"{ds}  {reviews:7d}  {tokens:6.1f}  {ended:6.1%}\n")
    sys.stdout.write("\n" + "".join(f"  {source}: {text.strip()}\n" for source, text in texts))
    return [str(ds) for ds, *_ in found if str(ds) in SUMMARY.nights]


SENTIMENT = Show(
    ROOT / "jobs" / "reviews_sentiment.yaml",
    tuple(night.ds for night in NIGHTS[:3]),
    scheduled=True,
    prepare=put_sentiment_inputs,
    answer=show_positive_share,
)
SUMMARY = Show(
    ROOT / "jobs" / "reviews_summary.yaml",
    (NIGHTS[0].ds,),
    scheduled=False,
    prepare=put_summary_inputs,
    answer=show_summaries,
)
SHOWS = {show.job.name: show for show in (SENTIMENT, SUMMARY)}


def find_show(job: str) -> Show:
    """The show of a job file. Raises ValueError that lists those that there are."""
    if Path(job).name not in SHOWS:
        names = ", ".join(f"jobs/{name}" for name in SHOWS)
        raise ValueError(f"JOB {job}: the demo has inputs for: {names}; run another one with `lengthwise run`")
    return SHOWS[Path(job).name]
