"""Planned shapes against powers of two with the same number of graphs, and predicted against measured seconds.

    python -m bench.plans [--rounds 3]

Both run the same night of real reviews through `lengthwise run` with one worker, in turn, and their CPU seconds of
executing batches are compared. "predicted" is what the artifacts' measured costs say of the batches that ran.
"""  # fmt: skip

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from demo.nights import NIGHTS, put_local, write_nights
from demo.sentiment_model import build_sentiment_model

NIGHT = NIGHTS[0]
MAX_LENGTH = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="auto")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lengthwise-plans-") as folder:
        reports = compare(Path(folder), arguments.rounds, arguments.precision)
    for name, found in reports.items():
        measured = statistics.median(report["infer_cpu_seconds"] for report in found)
        predicted = found[-1]["infer_predicted_seconds"]
        shapes = ", ".join(shape["shape"] for shape in found[-1]["shapes"])
        print(  # noqa: T201
            f"{name}: {measured:.2f} CPU s (median of {len(found)}), predicted {predicted:.2f} s "
            f"({predicted / measured - 1:+.1%}), padding efficiency {found[-1]['padding_efficiency']:.3f}, {shapes}"
        )
    planned, powers = (statistics.median(report["infer_cpu_seconds"] for report in reports[name]) for name in reports)
    print(f"powers of two / planned: {powers / planned:.3f}")  # noqa: T201


def compare(folder: Path, rounds: int, precision: str) -> dict[str, list[dict[str, Any]]]:
    """Reports of each way, a run of each in turn."""
    model = build_sentiment_model(folder / "model")
    write_nights(put_local, str(folder / "in"), [NIGHT])
    powers = [f"{1024 // length}x{length}" for length in (16, 32, 64, 128, 256, MAX_LENGTH)]
    planned = _job(folder, "planned", model, precision, max_graphs=len(powers))
    doubling = _job(folder, "powers", model, precision, shapes=powers)
    jobs = {f"planned, {len(powers)} graphs": planned, f"powers of two, {len(powers)} graphs": doubling}
    for file in jobs.values():
        _lengthwise(folder, "compile", file)
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, file in jobs.items():
            reports[name].append(_lengthwise(folder, "run", file, "--fresh", "--workers", "1"))
    return reports


def _job(folder: Path, name: str, model: Path, precision: str, **fields: Any) -> Path:
    job = {
        "name": name,
        "model": {"uri": str(model)},
        "input": {"uri": "in/ds={ds}/", "text": "text", "id": "review_id"},
        "precision": precision,
        "max_length": MAX_LENGTH,
        "truncation": "head",
        "artifacts": "artifacts",
        "output": {"uri": f"out-{name}"},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(job | fields))
    return path


def _lengthwise(folder: Path, command: str, job: Path, *options: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "pipeline", command, str(job), "--ds", NIGHT.ds, "--json", *options]
    environment = {**os.environ, "LENGTHWISE_CACHE": str(folder / "cache")}
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
