"""Whether the demo's answer is right: what DuckDB reads from S3 against a plain transformers loop over the same nights.

    make demo-check                                    after `make demo`; exit code 1 when any night differs
    make demo-check JOB=jobs/reviews_summary.yaml      prompts of the generation job, as transformers renders them
"""  # fmt: skip

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from demo.nights import NIGHTS, put_local, write_nights
from demo.query import positive_share
from demo.reference import predict_night, read_rows
from demo.run import S3_FOLDER
from demo.sentiment_model import build_sentiment_model
from demo.servers.seaweed import local_s3
from demo.shows import ROOT, SENTIMENT, SUMMARY, SUMMARY_FOLDER, find_show

BACKFILL = SENTIMENT.nights


def main() -> int:
    """Print both answers night by night; 0 when they are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", default=str(SENTIMENT.job))
    return check_summary() if find_show(parser.parse_args().job) is SUMMARY else check_sentiment()


def check_summary() -> int:
    """Whether every review of the night has a summary, of the prompt that transformers makes of it."""
    import yaml
    from transformers import AutoTokenizer

    job, ds = yaml.safe_load(SUMMARY.job.read_text()), SUMMARY.nights[0]
    tokenizer = AutoTokenizer.from_pretrained(SUMMARY_FOLDER / "models" / "smollm2")
    expected = {}
    for row in read_rows(SUMMARY_FOLDER / "nights" / f"ds={ds}"):
        question = job["input"]["template"].format(text=row["text"])
        chat = [{"role": "system", "content": job["generate"]["system"]}, {"role": "user", "content": question}]
        tokens = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
        expected[row["review_id"]] = min(len(tokens), job["max_length"])
    folder = SUMMARY_FOLDER / "reviews_summary" / "predictions" / f"ds={ds}"
    rows = pq.read_table(folder, partitioning=None).to_pylist()
    found = {row["row_id"]: row["prompt_tokens"] for row in rows if row["text"]}
    same = sum(found.get(name) == tokens for name, tokens in expected.items())
    sys.stdout.write(
        f"{ds}  {len(expected)} reviews, {len(found)} with a text, {same} with the prompt of transformers\n"
    )
    return int(not same == len(expected) == len(rows) > 0)


def check_sentiment() -> int:
    """The share of positive reviews."""
    with local_s3(ROOT / ".demo" / S3_FOLDER) as s3:
        published = {ds: (rows, share) for ds, rows, share in positive_share(s3, BACKFILL[0], BACKFILL[-1])}
    with tempfile.TemporaryDirectory(prefix="lengthwise-check-") as folder:
        expected = expected_shares(Path(folder))
    for ds in BACKFILL:
        verdict = "equal" if published.get(ds) == expected[ds] else "DIFFERENT"
        sys.stdout.write(f"{ds}  DuckDB {published.get(ds)}  plain loop {expected[ds]}  {verdict}\n")
    return int(any(published.get(ds) != expected[ds] for ds in BACKFILL))


def expected_shares(folder: Path) -> dict[str, tuple[int, float]]:
    """Per night, rows and the share of positive ones, by the plain loop."""
    model = build_sentiment_model(folder / "model")
    write_nights(put_local, str(folder / "nights"), [night for night in NIGHTS if night.ds in BACKFILL])
    shares = {}
    for ds in BACKFILL:
        labels = [prediction.label for prediction in predict_night(model, folder / "nights" / f"ds={ds}").values()]
        shares[ds] = (len(labels), labels.count("POSITIVE") / len(labels))
    return shares


if __name__ == "__main__":
    sys.exit(main())
