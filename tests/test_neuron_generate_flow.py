"""A generation job with target: neuron through the whole flow, by the real optimum-neuron over the test double."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from neuron_tools import double_environment, events, neuron_double
from tiny_decoders import EOS, greedy_by_transformers, make_decoder
from transformers import AutoTokenizer

from compile.costs import default_costs
from compile.planner import plan_shapes
from compile.targets.neuron_decoder import make
from jobs import DS, JobHome, jsonl, make_home
from pipeline import steps
from pipeline.errors import JobError
from pipeline.objects import Objects

TEXTS = ["good", "a good movie and a bad one", "paris", "what is batch inference", "the quick brown fox", "it jumps"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decoder(tmp_path_factory.mktemp("models") / "qwen2", "qwen2")


def home_of(folder: Path, model: Path, **fields: Any) -> JobHome:
    job = {
        "task": "generate", "target": "neuron", "precision": "fp32", "shapes": ["3x48"], "max_length": 48,
        "truncation": "reject", "generate": {"max_new_tokens": 6, "token_ids": True}, "workers": 1,
    }  # fmt: skip
    return make_home(folder, model, str(folder), **(job | fields))


def test_a_run_has_the_texts_of_transformers_and_compiles_in_one_step_alone(tmp_path: Path, model: Path) -> None:
    rows = [{"id": f"r{row}", "text": text, "group": "a"} for row, text in enumerate(TEXTS)]
    Objects().put(f"{tmp_path}/in/ds={DS}/part-0.jsonl", jsonl(rows))
    log = tmp_path / "log"
    home = home_of(tmp_path, model, artifacts=str(tmp_path / "artifacts"))
    home = dataclasses.replace(home, environment={**home.environment, **double_environment(log=log)})
    report = home.run()
    assert (report["predicted"], report["rejected"], report["compilations_in_infer"]) == (6, 0, 0)
    found = pq.read_table(tmp_path / f"out/predictions/ds={DS}/part-00000.parquet").to_pylist()
    tokenizer = AutoTokenizer.from_pretrained(model)
    for row, text in zip(found, TEXTS, strict=True):
        chat = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)
        tokens = greedy_by_transformers(model, np.array(chat, np.int64), 6)
        assert (row["token_ids"], row["prompt_tokens"]) == (tokens, len(chat))
        assert row["finish_reason"] == ("stop" if tokens[-1] == EOS else "length")
        assert row["shape"] == "3x48"
    assert [event["shape"] for event in events(log, "compile")] == ["1x48", "3x1"]
    compiler, loads = events(log, "compile")[0]["pid"], {event["pid"] for event in events(log, "load")}
    assert compiler not in loads, "one process exports, one proves it, one works"
    assert len(loads) == 2
    assert 0 < report["tokens"]["occupancy"] <= 1


@pytest.mark.parametrize(
    ("generate", "neuron", "message"),
    [
        ({"repetition_penalty": 1.2}, {"on_device_sampling": True}, "on_device_sampling has no repetition_penalty"),
        ({"regex": "a+"}, {"on_device_sampling": True}, "on_device_sampling has no constraint"),
        ({"log_probability": True}, {"on_device_sampling": True}, "on_device_sampling tells none"),
        ({}, {"optlevel": "3"}, r"neuron\.optlevel is of encoders"),
    ],
)
def test_settings_that_it_has_not_are_errors_before_anything_runs(
    tmp_path: Path, model: Path, generate: dict[str, Any], neuron: dict[str, Any], message: str
) -> None:
    home = home_of(tmp_path, model, generate={"max_new_tokens": 6, **generate}, neuron=neuron)
    with neuron_double(), pytest.raises(JobError, match=message):
        steps.check(home.context())


def test_a_model_that_no_core_can_hold_is_an_error_before_anything_compiles(tmp_path: Path, model: Path) -> None:
    deep = shutil.copytree(model, tmp_path / "deep")
    config = json.loads((deep / "config.json").read_text())
    (deep / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1 << 20, "layer_types": None}))
    Objects().put(f"{tmp_path}/in/ds={DS}/part-0.jsonl", jsonl([{"id": "a", "text": "good", "group": "a"}]))
    context = home_of(tmp_path, deep, shapes="auto").context()
    with neuron_double():
        snapshot = steps.snapshot(context)["snapshot"]
        steps.tokenize(context, snapshot)
        with pytest.raises(JobError, match=r"a graph for 48 tokens takes about \d+ MiB.* 1 NeuronCores limit it"):
            steps.plan(context, snapshot)


@pytest.mark.parametrize(("rows", "lengths"), [(200, [512]), (2_000, [512]), (20_000, [64, 512])])
def test_a_further_prompt_length_is_planned_only_where_it_pays_for_its_compiling(rows: int, lengths: list[int]) -> None:
    """Nine tenths of the prompts are short, and yet a night of few rows gets one export."""
    counts = np.zeros(513, np.int64)
    counts[60], counts[500] = rows * 9 // 10, rows // 10
    costs, candidates = default_costs("neuron", 64), make(64).candidates(512)
    assert costs.compile_s == 2 * default_costs("neuron").compile_s, "an export has two graphs"
    fixed = dict.fromkeys(candidates, costs.load_s + costs.compile_s / 30)
    plan = plan_shapes(counts, costs, candidates, 16, 512, fixed_seconds=fixed)
    assert [shape.length for shape in plan.shapes] == lengths
