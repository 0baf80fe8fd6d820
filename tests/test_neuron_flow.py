"""Jobs with `target: neuron` over the double of the SDK, as a user runs them: the `lengthwise` command, local paths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from neuron_tools import double_environment, events

from compile.targets.encoders import load_encoder
from jobs import DS, JobHome, make_home, put_rows, rows
from pipeline.objects import Objects
from pipeline.toolchain import artifact_store

SHAPE = "8x96"


def neuron_home(folder: Path, model: Path, **fields: object) -> JobHome:
    """40 rows; the steps' processes find the double, on a host with one inf2 device unless a command says otherwise.

    Its artifacts are its own: what lies beside the model depends on which tests ran before.
    """
    own = {"target": "neuron", "shapes": [SHAPE], "max_length": 96, "artifacts": f"{folder}/artifacts"}
    home = make_home(folder, model, str(folder), **(own | fields))
    put_rows(Objects().put, str(folder), rows(40))
    environment = {**home.environment, **double_environment(log=folder / "double.jsonl")}
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(Path(__file__).parents[1])])
    return replace(home, environment=environment)


def expected_scores(model: Path, texts: list[str]) -> list[list[float]]:
    """Of a plain loop over the model, one row at a time."""
    import torch
    from transformers import AutoTokenizer

    tokenizer, network = AutoTokenizer.from_pretrained(model), load_encoder(model)
    with torch.inference_mode():
        encoded = [tokenizer(text, truncation=True, max_length=96, return_tensors="pt") for text in texts]
        names = ("input_ids", "attention_mask", "token_type_ids")
        return [network(**{name: each[name] for name in names}).softmax(-1)[0].tolist() for each in encoded]


@pytest.mark.timeout(900)  # some twenty processes that import torch
def test_compiled_on_one_host_proven_and_run_on_another(tmp_path: Path, tiny_model: Path) -> None:
    home = neuron_home(tmp_path, tiny_model, output={"all_scores": True})
    job, dated, log = str(home.file), ("--ds", DS), tmp_path / "double.jsonl"

    built = home.command("compile", job, *dated, NEURON_DOUBLE_HOST="")
    assert built.returncode == 0, built.stderr
    assert "parity pending: its device is not here" in built.stderr
    assert "1 artifacts built" in built.stdout
    refused = home.command("compile", job, *dated, "--verify", NEURON_DOUBLE_HOST="")
    assert (refused.returncode, "nothing can be verified here: this host has no Neuron device" in refused.stderr) == (
        4,
        True,
    )
    refused = home.command("run", job, *dated, "--no-compile")
    assert refused.returncode == 4
    assert "parity is pending" in refused.stderr
    assert "lengthwise compile --verify" in refused.stderr

    proved = home.command("compile", job, *dated, "--verify")
    assert (proved.returncode, proved.stdout.strip()) == (0, "1 artifacts proved, 0 reused"), proved.stderr
    (artifact,) = json.loads(home.command("artifacts", "list", job, "--json").stdout)["artifacts"]
    assert artifact["parity"]["passed"]
    assert artifact["timing"]["median_s"] > 0
    store = artifact_store(home.context())
    told = store.blobs.get(store.blob_uri(artifact["files"]["compile.log"]["sha256"])).decode()
    assert "this SDK is the double of the tests, not AWS's" in told
    assert "'batch_size': 8, 'sequence_length': 96" in told

    report = home.run("--no-compile")
    assert (report["rows"], report["predicted"], report["compilations_in_infer"]) == (40, 40, 0)
    assert [event["shape"] for event in events(log, "compile")] == [SHAPE]
    assert {event["shape"] for event in events(log, "execute")} == {SHAPE}
    output = pq.read_table(tmp_path / f"out/predictions/ds={DS}/part-00000.parquet").to_pylist()
    wanted = expected_scores(tiny_model, [row["text"] for row in rows(40)])
    assert np.abs(np.array([row["scores"] for row in output]) - wanted).max() < 1e-5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_optimum_cli_exports_is_adopted_and_an_artifact_is_exported(tmp_path: Path, tiny_model: Path) -> None:
    home = neuron_home(tmp_path, tiny_model, precision="bf16", neuron={"inline_weights_to_neff": False})
    job, folder = str(home.file), tmp_path / "exported"
    optimum_cli = [str(Path(sys.executable).parent / "optimum-cli"), "export", "neuron", "--model", str(tiny_model)]
    options = [
        "--task", "text-classification", "--batch_size", "8", "--sequence_length", "96", "--instance_type", "inf2",
        "--auto_cast", "matmul", "--auto_cast_type", "bf16", "--disable_neuron_cache", "--disable-validation",
    ]  # fmt: skip
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # it starts `python3`
    subprocess.run([*optimum_cli, *options, str(folder)], env={**home.environment, "PATH": path}, check=True)

    other = home.variant(neuron={"optlevel": "3"})
    refused = other.command("artifacts", "adopt", str(other.file), str(folder), "--ds", DS)
    assert refused.returncode == 4
    assert "optlevel 2 instead of 3, inline_weights_to_neff false instead of true" in refused.stderr
    adopted = home.command("artifacts", "adopt", job, str(folder), "--ds", DS, "--json")
    assert adopted.returncode == 0, adopted.stderr
    manifest = json.loads(adopted.stdout)
    assert manifest["parity"]["passed"]
    assert "model.neuron" in manifest["files"]

    target = tmp_path / "again"
    assert home.command("artifacts", "export", job, manifest["key"][:8], str(target)).returncode == 0
    assert {each.name: each.read_bytes() for each in target.iterdir()} == {
        each.name: each.read_bytes() for each in folder.iterdir()
    }
    taken = home.command("artifacts", "export", job, manifest["key"], str(target))
    assert (taken.returncode, "not an empty folder" in taken.stderr) == (2, True)
    assert home.run("--no-compile")["predicted"] == 40


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target": "torch"}, "neuron: only for target: neuron"),
        ({"precision": "fp32", "neuron": {"auto_cast": "all"}}, "neuron: precision fp32 casts nothing"),
        ({"neuron": {"tensor_parallel_size": 2}}, "2 cores for one copy are cores: latency"),
        ({"neuron": {"cores": "latency"}}, "neuron.cores: only for task: generate"),
        ({"neuron": {"compile_timeout_minutes": 0}}, "neuron.compile_timeout_minutes"),
        ({"neuron": {"autocast": "all"}}, "neuron.autocast: unknown key; valid keys here: instance_type, auto_cast"),
    ],
)
def test_what_a_job_may_not_ask_for(tmp_path: Path, fields: dict[str, object], message: str) -> None:
    from pipeline.errors import JobError
    from pipeline.job import parse_job

    job = {
        "name": "tiny", "model": {"uri": "m"}, "input": {"uri": "in/", "text": "text"}, "output": {"uri": "out"},
        "target": "neuron", "neuron": {"optlevel": "1"},
    }  # fmt: skip
    assert parse_job(job, "test").neuron_settings is not None
    with pytest.raises(JobError, match=message):
        parse_job(job | fields, "test")
