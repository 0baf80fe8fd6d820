"""What the scale benchmark runs over: tweets as often as it takes, a tiny model with a real vocabulary, a job file.

    python -m bench.scale_inputs FOLDER ROWS TARGET SPLIT_ROWS        in a process of its own: torch is large
"""  # fmt: skip

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from bench.rows import tweets
from compile.toolchains import ENTRY_POINT_GROUP
from demo.sentiment_model import build_sentiment_model

DS = "2026-11-24"
STUB = "stub"
STUB_CHARS = 32
_FILE_ROWS = 250_000
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def job_file(folder: Path, rows: int, target: str) -> Path:
    return folder / f"{target}-{rows}.yaml"


def write_rows(folder: Path, rows: int, split_rows: int, chars: int | None) -> None:
    """Parquet files of at most _FILE_ROWS tweets, cut to `chars`; the tweets repeat, ids do not."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [text[:chars] for text in tweets()]
    for start in range(0, rows, _FILE_ROWS):
        numbers = range(start, min(rows, start + _FILE_ROWS))
        table = pa.table({"id": [f"row-{k:09d}" for k in numbers], "text": [texts[k % len(texts)] for k in numbers]})
        pq.write_table(table, folder / f"part-{start // _FILE_ROWS:05d}.parquet", row_group_size=split_rows)


def write_model(folder: Path, *, blank: bool) -> Path:
    """A random two-layer BERT with MiniLM's tokenizer; a blank one answers every text with its classifier's bias."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    base = build_sentiment_model(folder.parent / "base")
    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig.from_pretrained(base, **small))
    with torch.no_grad():
        model.classifier.weight.normal_(0, 0.0 if blank else 2.0)
        model.classifier.bias.normal_(0, 1)
    model.eval().save_pretrained(folder)
    for name in _TOKENIZER_FILES:
        shutil.copyfile(base / name, folder / name)
    return folder


def write_job(folder: Path, rows: int, target: str, split_rows: int) -> None:
    model = folder / f"model-{target}"
    if not model.exists():
        write_model(model, blank=target == STUB)
    write_rows(
        folder / "in" / job_file(folder, rows, target).stem / f"ds={DS}",
        rows,
        split_rows,
        STUB_CHARS if target == STUB else None,
    )
    job = {
        "name": f"scale_{target}",
        "target": target,
        "precision": "fp32",
        "model": {"uri": str(model)},
        "input": {"uri": f"in/{target}-{rows}/ds={{ds}}/", "text": "text", "id": "id", "split_rows": split_rows},
        "shapes": ["128x24", "64x48", "32x128"],
        "max_length": 128,
        "truncation": "head",
        "artifacts": f"artifacts-{target}",
        "output": {"uri": f"out-{target}-{rows}"},
    }
    job_file(folder, rows, target).write_text(yaml.safe_dump(job))


def register_stub(folder: Path) -> dict[str, str]:
    """Environment in which processes find the stub, as if a package had registered it."""
    info = folder / "stub_target-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stub-target\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n{STUB} = bench.stub_target\n")
    root = Path(__file__).parent.parent
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(root), os.environ.get("PYTHONPATH", "")]).rstrip(":")}


if __name__ == "__main__":
    write_job(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
