"""Whether the demo's answer is right: what DuckDB reads from S3 against a plain transformers loop over the same nights.

    make demo-check        after `make demo`; exit code 1 when any night differs
"""  # fmt: skip

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from demo.nights import NIGHTS, put_local, write_nights
from demo.query import positive_share
from demo.reference import predict_night
from demo.run import BACKFILL, ROOT, S3_FOLDER
from demo.sentiment_model import build_sentiment_model
from demo.servers.seaweed import local_s3


def main() -> int:
    """Print both answers night by night; 0 when they are equal."""
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
