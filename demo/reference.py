"""The plain transformers loop that a user would write: the oracle. It shares no code with pipeline or compile.

    python -m demo.reference MODEL_DIR REVIEWS_DIR [--ds 2026-11-24 ...]

prints the share of positive reviews of each night under REVIEWS_DIR/ds=YYYY-MM-DD/.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_LENGTH = 512


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the loop says about one text."""

    label: str
    score: float
    """Softmax probability of the label, float32."""
    scores: tuple[float, ...]
    """Softmax probability of every label, in the order of the model's ids."""


def predict(model_dir: Path, texts: Sequence[str], batch_size: int = 16) -> list[Prediction]:
    """Tokenise, cut after 512 tokens, run in float32 on one thread; one prediction per text, in order."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForSequenceClassification.from_pretrained(model_dir, dtype=torch.float32).eval()
    # Similar lengths share a batch, so that little of it is padding; results go back to where their text was.
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    predictions: dict[int, Prediction] = {}
    with torch.inference_mode():
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch = tokenizer(
                [texts[row] for row in rows], padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt"
            )
            for row, scores in zip(rows, model(**batch).logits.softmax(-1).tolist(), strict=True):
                best = max(range(len(scores)), key=scores.__getitem__)
                predictions[row] = Prediction(model.config.id2label[best], scores[best], tuple(scores))
    return [predictions[row] for row in range(len(texts))]


def read_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Rows of every Parquet, JSONL and JSONL.gz file of a folder, files by name, without lines that are no JSON."""
    import pyarrow.parquet as pq

    for path in sorted(folder.iterdir()):
        if path.suffix == ".parquet":
            yield from pq.read_table(path).to_pylist()
            continue
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        # Of the bytes: str.splitlines would also cut at U+0085, which real reviews contain.
        for line in data.splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue


def usable(row: dict[str, Any]) -> bool:
    """Whether a row has a text to judge, be it empty; the others are rejects."""
    return isinstance(row.get("text"), str)


def predict_night(model_dir: Path, folder: Path) -> dict[str, Prediction]:
    """Predictions of one night's usable rows, by review id."""
    rows = [row for row in read_rows(folder) if usable(row)]
    return dict(zip([row["review_id"] for row in rows], predict(model_dir, [row["text"] for row in rows]), strict=True))


def main() -> int:
    """Print one line per night, or JSON with `--json`; 2 when there is no such night."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("reviews_dir", type=Path, help="local folder with ds=YYYY-MM-DD/ folders")
    parser.add_argument("--ds", action="append", help="only this night (may be repeated)")
    parser.add_argument("--json", action="store_true", help="{night: {rows, positive, share}} on one line")
    args = parser.parse_args()
    nights = args.ds or sorted(path.name.removeprefix("ds=") for path in args.reviews_dir.glob("ds=*"))
    answers: dict[str, dict[str, float]] = {}
    for night in nights:
        folder = args.reviews_dir / f"ds={night}"
        if not folder.is_dir():
            sys.stderr.write(f"there is no {folder}\n")
            return 2
        labels = [prediction.label for prediction in predict_night(args.model_dir, folder).values()]
        positive = labels.count("POSITIVE")
        answers[night] = {"rows": len(labels), "positive": positive, "share": positive / max(len(labels), 1)}
        if not args.json:
            sys.stdout.write(f"{night}  {len(labels):6d} rows  {answers[night]['share']:.4f} positive\n")
            sys.stdout.flush()
    if args.json:
        sys.stdout.write(json.dumps(answers) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
