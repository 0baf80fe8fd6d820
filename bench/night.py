"""Run one large night of real reviews and print what the promises about memory and busy cores look like.

    python -m bench.night 20000               the demo's classifier: worker memory, busy share of both cores
    python -m bench.night 100000 --tiny       a tiny model, so that the coordinator's memory is seen without the wait
"""  # fmt: skip

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from demo.nights import put_local, write_large_night
from demo.sentiment_model import build_sentiment_model

DS = "2026-11-24"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int)
    parser.add_argument("--tiny", action="store_true", help="a random two-layer model instead of the demo's")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lengthwise-night-") as folder:
        report = run_night(Path(folder), arguments.rows, arguments.tiny)
    shown = ("rows", "predicted", "padding_efficiency", "infer_rows_per_second", "peak_memory_mb", "seconds", "cores")
    print(json.dumps({name: report[name] for name in shown} | {"model_mb": report["model_mb"]}, indent=1))  # noqa: T201


def run_night(folder: Path, rows: int, tiny: bool, target: str = "openvino") -> dict[str, object]:
    """The report of a `lengthwise run` over `rows` reviews, with the size of the model's weights added."""
    model = _tiny_model(folder / "model") if tiny else build_sentiment_model(folder / "model")
    # Whole reviews where memory is the question, a quarter of them where time is.
    write_large_night(put_local, str(folder / "in"), DS, rows, imdb_share=1.0 if tiny else 0.25)
    job = {
        "name": "night",
        "target": target,
        "model": {"uri": str(model)},
        "input": {"uri": "in/ds={ds}/", "text": "text", "id": "review_id", "keep": {"source": "string"}},
        "max_length": 128 if tiny else 512,
        "truncation": "head",
        "output": {"uri": "out"},
    }
    (folder / "night.yaml").write_text(yaml.safe_dump(job))
    command = [sys.executable, "-m", "pipeline", "run", str(folder / "night.yaml"), "--ds", DS, "--json"]
    environment = {**os.environ, "LENGTHWISE_CACHE": str(folder / "cache")}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
    report: dict[str, object] = json.loads(done.stdout)
    return report | {"model_mb": round((model / "model.safetensors").stat().st_size / 1e6, 1)}


def _tiny_model(folder: Path) -> Path:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    return Path(importlib.import_module("tiny_models").make_model(folder))


if __name__ == "__main__":
    main()
