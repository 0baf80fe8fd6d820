"""The job that the chaos tests attack: small, but with several objects, splits, parts, shards, workers and rejects."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from neuron_tools import double_environment, exports_in_process, neuron_double

from jobs import DS, JobHome, jsonl, make_home, rows
from pipeline import steps
from pipeline.objects import Objects
from pipeline.objects.local import TEMPORARY_PREFIX

WORKERS = 2
SHAPES = [f"4x{8 * k}" for k in range(1, 17)]
"""Every shape has a shard of its own, so a few rows make many shards."""
FEW_SHAPES = ["4x16", "4x32", "4x64", "4x128"]
SPLITS = 3
_GROUP_ROWS = 60
_FILLER = "x" * 700_000
"""In a column that no job reads. 60 of them are over half of a split's bytes, and compress to nothing."""


def put_night(put: Callable[[str, bytes], None], root: str) -> None:
    """One Parquet object of three row groups, each a split; a JSONL object in the last of them, with bad rows."""
    source = rows(SPLITS * _GROUP_ROWS + 20)
    table = pa.Table.from_pylist([{**row, "filler": _FILLER} for row in source[:-20]])
    sink = io.BytesIO()
    pq.write_table(
        table, sink, row_group_size=_GROUP_ROWS, compression="zstd", use_dictionary=False, write_statistics=False
    )
    put(f"{root}/in/ds={DS}/a.parquet", sink.getvalue())
    bad = [b"no json\n", b'{"id": "x", "text": null, "group": "a"}\n', b'{"id": "y", "text": "\xff"}\n']
    put(f"{root}/in/ds={DS}/b.jsonl", jsonl(source[-20:-8]) + b"".join(bad) + jsonl(source[-8:]))


GENERATE: dict[str, Any] = {
    "task": "generate",
    "target": "openvino-slots",
    "shapes": ["4x20", "4x28", "4x36", "4x48"],
    "max_length": 48,
    "generate": {"max_new_tokens": 8},
}
"""Fields of the same job as one of task generate, on static slots, whose bytes are promised. Greedy: workers that draw
nothing load no PyTorch, and start as fast as those of classify."""

NEURON: dict[str, Any] = {
    "target": "neuron",
    "shapes": [f"2x{length}" for length in (13, 23, 27, 32, 36, 60, 78, 107, 120, 128)],
    "workers": "auto",
}
"""Fields of the same job as one for NeuronCores, simulated by the double of the SDK: a worker per core, and of
every shape at least two rows of the night, so that there are more shards than cores."""
HOSTS = {2: "inf2.xlarge:1", 8: "inf2.24xlarge:4"}
"""Cores -> a host with them; AWS's inf2.24xlarge has two devices more."""


@dataclass(frozen=True)
class Target:
    """One output of the job, with what a run leaves there."""

    home: JobHome
    out: str
    workers: int = WORKERS

    def names(self) -> list[str]:
        """Every object under the output, relative, without temporary files. Fast: it is polled."""
        if self.out.startswith("s3://"):
            return [uri.removeprefix(f"{self.out}/") for uri in Objects().list(f"{self.out}/")]
        found = [os.path.join(folder, file) for folder, _, files in os.walk(self.out) for file in files]
        return [os.path.relpath(path, self.out) for path in found if TEMPORARY_PREFIX not in path]

    def tables(self) -> dict[str, bytes]:
        """What readers see, by relative name."""
        objects = Objects()
        names = [name for name in self.names() if name.startswith(("predictions/", "rejects/"))]
        return {name: objects.get(f"{self.out}/{name}") for name in names}

    def count(self, what: str) -> int:
        """How far a run has come; `what` is one of the keys of PROGRESS, or `artifacts`."""
        if what == "artifacts":
            return len(list((self.home.folder / "artifacts").glob("manifests/*")))
        return sum(PROGRESS[what](name) for name in self.names())


PROGRESS: dict[str, Callable[[str], bool]] = {
    "tokens": lambda name: "/tokens/" in name and name.endswith("meta.json"),
    "shards": lambda name: re.search(r"/shards/shard-\d+\.arrow$", name) is not None,
    "parts": lambda name: "/runs/" in name and name.endswith(".parquet"),
    "summaries": lambda name: "/summaries/" in name,
    "copied": lambda name: name.startswith(("predictions/", "rejects/")),
    "manifest": lambda name: "/commits/" in name,
}
"""Kind of progress -> whether an object is a step of it."""


def make_target(folder: Path, model: Path, root: str, out: str, **fields: Any) -> Target:
    """The job over the night under `root`, which writes to `root`/`out`; its own files lie in `folder`/homes."""
    home = make_home(
        folder / "homes" / out,
        model,
        root,
        **{
            "shapes": SHAPES,
            "workers": WORKERS,
            "reject_budget": {"share": 0.1},
            "output": {"uri": f"{root}/{out}"},
            **fields,
        },
    )
    # One cache for all, as on a host: what a killed process left there must not harm the next one.
    environment = {**home.environment, "LENGTHWISE_CACHE": str(folder / "cache")}
    return Target(JobHome(home.folder, home.file, environment), f"{root}/{out}")


def on_neuron_cores(target: Target, cores: int) -> Target:
    """The same output of a job for NeuronCores, on a host of so many that keeps a used core until its process ends."""
    folder = target.home.folder / "neuron-cores"
    folder.mkdir(parents=True, exist_ok=True)
    double = double_environment(HOSTS[cores], cores=folder, log=target.home.folder / "double.jsonl")
    home = replace(target.home, environment={**target.home.environment, **double})
    return replace(target, home=home, workers=cores)


def run_in_process(target: Target) -> None:
    """A whole undisturbed run of a job for NeuronCores, its artifacts included, in this process and on one core.

    Whoever runs a job for Neuron imports PyTorch and optimum-neuron for seconds; so that happens once.
    """
    with neuron_double(), exports_in_process(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("LENGTHWISE_LOCK_DIR", target.home.environment["LENGTHWISE_LOCK_DIR"])
        context = target.home.context()
        snapshot = steps.snapshot(context)["snapshot"]
        steps.tokenize(context, snapshot)
        run = steps.plan(context, snapshot)["run"]
        steps.compile_artifacts(context, run)
        assert steps.infer(context, run)["compilations"] == 0
        steps.publish(context, run)
        steps.commit(context, run)
        steps.report(context, run)
