"""A job with `target: neuron` under attack, over the double of the SDK: kill -9, an aborting batch, a hanging compiler.

What is right afterwards is what an undisturbed run in this process wrote.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from chaos_job import NEURON, Target, make_target, on_neuron_cores, run_in_process
from chaos_kills import Trial
from chaos_run import Campaign
from neuron_tools import at_start_of_python, double_environment, events

from jobs import DS, put_rows, share_shape_plan
from pipeline.events import read_events
from pipeline.objects import Objects

pytestmark = pytest.mark.timeout(1800)  # dozens of processes that import PyTorch and optimum-neuron


def attacked(folder: Path, model: Path, kind: str, kills: int) -> Trial:
    """So many kills of runs on simulated cores, then all that chaos_kills.finish checks; the last trial."""
    found = Campaign(folder, model, model, {"local": str(folder)})
    found.prepare([kind])
    number = 0
    while len(found.kills) < kills:
        trial = found.trial(kind, f"{number}", kills - len(found.kills))
        number += 1
        log = trial.target.home.folder / "double.jsonl"
        assert events(log, "compile") == [], "its artifacts were there"
        cores = {core for event in events(log, "load") for core in event["cores"]}
        assert cores <= set(range(trial.target.workers))
    return trial


def test_kills_on_two_cores_lose_and_double_nothing(tmp_path: Path, tiny_model: Path) -> None:
    attacked(tmp_path, tiny_model, "neuron", 2)


@pytest.mark.slow
def test_kills_on_eight_cores_lose_and_double_nothing(tmp_path: Path, tiny_model: Path) -> None:
    target = attacked(tmp_path, tiny_model, "neuron-8", 4).target
    before, started = target.tables(), time.time()
    done = target.home.command("run", str(target.home.file), "--ds", DS, "--fresh", "--json", timeout_s=900)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["compilations_in_infer"] == 0
    folders = Path(f"{target.out}/_lengthwise/runs/ds={DS}").rglob("events")
    found = [event for folder in folders for event in read_events(Objects(), f"{folder}/")]
    infer = [event for event in found if event["event"] == "infer" and event["started"] > started]
    assert sorted(event["core"] for event in infer) == [*range(8)], "undisturbed, each core had its worker"
    assert target.tables() == before


SHORT, LONG = "a good movie", " ".join(["a good movie"] * 7)
NIGHT = [SHORT, f"{SHORT} [MASK]", SHORT, LONG, f"{LONG} how", f"{LONG} are you", LONG]
POISONED = 1


@pytest.fixture
def calm(tmp_path: Path, tiny_model: Path) -> Iterator[Target]:
    """A night in two shards, of which one batch holds the row with [MASK], and what it is on a sound device."""
    night = [{"id": f"r{row}", "text": text, "group": "a"} for row, text in enumerate(NIGHT)]
    put_rows(Objects().put, str(tmp_path), night, files=1)
    target = target_of(tmp_path, tiny_model, "calm")
    run_in_process(target)
    return target


def target_of(folder: Path, model: Path, out: str, **fields: Any) -> Target:
    settings = {**NEURON, "shapes": ["4x16", "4x48"], "max_length": 48, "reject_budget": {"share": 0.2}, **fields}
    target = on_neuron_cores(make_target(folder, model, str(folder), out, **settings), 2)
    share_shape_plan(Objects(), f"{folder}/calm", target.out)
    return target


def tables(target: Target) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    found = [
        pq.read_table(f"{target.out}/{table}/ds={DS}/part-00000.parquet", partitioning=None).to_pylist()
        for table in ("predictions", "rejects")
    ]
    return found[0], found[1]


@pytest.mark.slow
def test_a_batch_that_aborts_its_process_costs_the_row_at_fault_alone(
    tmp_path: Path, tiny_model: Path, calm: Target
) -> None:
    target = target_of(tmp_path, tiny_model, "aborted")
    vocabulary = json.loads((tiny_model / "tokenizer.json").read_text())["added_tokens"]
    (mask,) = [token["id"] for token in vocabulary if token["content"] == "[MASK]"]
    fault = {"NEURON_DOUBLE_EXECUTE": "abort", "NEURON_DOUBLE_TOKEN": str(mask)}
    done = target.home.command("run", str(target.home.file), "--ds", DS, "--json", timeout_s=900, **fault)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["predicted"], report["reject_reasons"]) == (len(NIGHT) - 1, {"worker_killed": 1})
    assert report["compilations_in_infer"] == 0
    predictions, rejects = tables(target)
    assert [(row["source_row"], row["stage"], row["reason"]) for row in rejects] == [
        (POISONED, "infer", "worker_killed")
    ]
    assert predictions == [row for row in tables(calm)[0] if row["source_row"] != POISONED]
    log = target.home.folder / "double.jsonl"
    assert [event["fault"] for event in events(log, "execute")].count("abort") >= 3, (
        "the worker, and the row twice alone"
    )
    assert events(log, "compile") == []


@pytest.mark.slow
def test_after_a_compiler_that_hangs_a_sound_one_ends_with_the_same_bytes(
    tmp_path: Path, tiny_model: Path, calm: Target
) -> None:
    target = target_of(tmp_path, tiny_model, "hung", artifacts=str(tmp_path / "artifacts"))
    log = target.home.folder / "double.jsonl"
    clock = at_start_of_python(tmp_path / "start", *deadline_when_hanging(log))
    double = double_environment(log=log, compile="hang@4x48", cores=target.home.folder / "neuron-cores")
    path = os.pathsep.join([double["PYTHONPATH"], clock["PYTHONPATH"]])
    hanging = replace(target.home, environment={**target.home.environment, **double, "PYTHONPATH": path})
    failed = hanging.command("run", str(hanging.file), "--ds", DS, timeout_s=900)
    assert failed.returncode == 4, failed.stderr
    assert "neuron: 4x48 fp32 was not compiled within 60 minutes and was given up" in failed.stderr
    assert "raise neuron.compile_timeout_minutes" in failed.stderr
    assert "Traceback" not in failed.stderr
    (compiler,) = events(log, "neuronx-cc")
    assert not psutil.pid_exists(compiler["pid"]) or psutil.Process(compiler["pid"]).status() == psutil.STATUS_ZOMBIE
    assert target.tables() == {}
    assert {event["shape"] for event in events(log, "execute")} <= {"4x16"}, "nothing was inferred"

    done = target.home.command("run", str(target.home.file), "--ds", DS, "--json", timeout_s=900)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["compilations_in_infer"] == 0
    assert target.tables() == calm.tables()


def deadline_when_hanging(log: Path) -> list[str]:
    """Python in which the hour that the compiler of 4x48 has is over as soon as it hangs: the clock is the test's."""
    return [
        "import pathlib, subprocess, time",
        "real = subprocess.Popen.wait",
        "def wait(process, timeout=None):",
        "    if timeout != 3600 or '\"sequence_length\": 48' not in process.args[-1]:",
        "        return real(process, timeout)",
        f"    log = pathlib.Path({str(log)!r})",
        "    while process.poll() is None and not (log.exists() and '\"hang\"' in log.read_text()):",
        "        time.sleep(0.05)",
        "    return real(process, 1)",
        "subprocess.Popen.wait = wait",
    ]
