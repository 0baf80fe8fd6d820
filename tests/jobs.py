"""Small jobs on tiny models for tests of the flow, and the `lengthwise` command as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from pipeline.context import Context
from pipeline.job import load_job
from pipeline.objects import Objects

DS = "2026-11-24"
WORDS = (Path(__file__).parent / "tiny_models.py").read_text().split()
"""Anything with many different words will do as text."""


def texts(count: int, longest: int = 90, seed: int = 0) -> list[str]:
    """Texts of 1 to `longest` words, many short and a few long ones, the same every time."""
    lengths = [1 + (index * 7919 + seed) % longest if index % 3 else 1 + (index + seed) % 12 for index in range(count)]
    return [
        " ".join(WORDS[(index * 31 + k) % len(WORDS)] for k in range(length)) for index, length in enumerate(lengths)
    ]


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@dataclass(frozen=True)
class JobHome:
    """A folder with a job file, and the environment that commands about it run in."""

    folder: Path
    file: Path
    environment: Mapping[str, str]

    def variant(self, **fields: Any) -> JobHome:
        """The same job with some fields changed, in a file beside: its steps' processes read the file."""
        file = self.folder / f"variant-{abs(hash(str(fields)))}.yaml"
        file.write_text(yaml.safe_dump(yaml.safe_load(self.file.read_text()) | fields))
        return replace(self, file=file)

    def context(self, ds: str = DS, **overrides: Any) -> Context:
        job = load_job(self.file).model_copy(update=overrides)
        return Context(job, ds, Objects(), self.folder / "cache")

    def command(self, *arguments: str, timeout_s: float = 480, **environment: str) -> subprocess.CompletedProcess[str]:
        """`lengthwise ...` with this home's environment."""
        return subprocess.run(
            [sys.executable, "-m", "pipeline", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**self.environment, **environment},
            check=False,
        )

    def run(self, *arguments: str, ds: str = DS) -> dict[str, Any]:
        """`lengthwise run` that must succeed; its report."""
        done = self.command("run", str(self.file), "--ds", ds, "--json", *arguments)
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(self.environment),
            start_new_session=True,
        )


def make_home(folder: Path, model: Path | str, root: str, **fields: Any) -> JobHome:
    """A job named `tiny` whose input and output lie under `root` (a path or s3://bucket/prefix).

    Artifacts lie beside a local model, so that all tests over it build them once. One worker, for each is a process
    that imports its runtime again; tests of what several do together say so.
    """
    job: dict[str, Any] = {
        "name": "tiny",
        "model": {"uri": str(model)},
        "input": {"uri": f"{root}/in/ds={{ds}}/", "text": "text", "id": "id", "keep": {"group": "string"}},
        "target": "openvino",
        "artifacts": f"{Path(model).parent}/artifacts" if isinstance(model, Path) else None,
        "precision": "fp32",
        "shapes": ["16x16", "8x32", "4x64", "2x128"],
        "max_length": 128,
        "truncation": "head",
        "workers": 1,
        "output": {"uri": f"{root}/out"},
        "price_per_hour": 0.5,
    }
    for name, value in fields.items():
        job[name] = {**job[name], **value} if isinstance(value, dict) and isinstance(job.get(name), dict) else value
    file = folder / "tiny.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(job))
    environment = {
        **os.environ,
        "LENGTHWISE_CACHE": str(folder / "cache"),
        "LENGTHWISE_LOCK_DIR": str(folder / "locks"),
    }
    return JobHome(folder, file, environment)


def put_rows(
    put: Callable[[str, bytes], None], root: str, rows: list[dict[str, Any]], ds: str = DS, files: int = 2
) -> None:
    """Rows as JSONL objects of one night."""
    share = -(-len(rows) // files)
    for part in range(files):
        put(f"{root}/in/ds={ds}/part-{part}.jsonl", jsonl(rows[part * share : (part + 1) * share]))


def share_shape_plan(objects: Objects, source_out: str, out: str) -> None:
    """Give an output the frozen shape plan of another: plans are made with the costs that are known at the time."""
    for uri in objects.list(f"{source_out}/_lengthwise/shape_plans/"):
        objects.copy(uri, out + uri.removeprefix(source_out))


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    return [
        {"id": f"r{index}", "text": text, "group": "ab"[index % 2]}
        for index, text in enumerate(texts(count, seed=seed))
    ]


def published(objects: Objects, root: str) -> dict[str, bytes]:
    """Content of every file that readers see, by URI, for comparing runs byte by byte."""
    return {
        uri: objects.get(uri) for table in ("predictions", "rejects") for uri in objects.list(f"{root}/out/{table}/")
    }
