"""Budgets of memory and of compile seconds: hard limits, by exact numbers, and what a job says when none fits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from compile.budget import GraphBudget
from compile.costs import default_costs
from compile.memory import graph_bytes
from compile.shapes import Shape
from jobs import DS, make_home, put_rows, rows
from pipeline.objects import Objects

CANDIDATES = [Shape(length=length, batch=batch) for length in (32, 64, 128) for batch in (1, 8)]


def slot_bytes(shape: Shape) -> int:
    return shape.slot_tokens << 20


@pytest.mark.parametrize(
    ("compile_s", "per_graph", "graphs"), [(None, 600, 8), (1000, 600, 1), (1200, 600, 2), (1199, 600, 1), (9e9, 1, 8)]
)
def test_compile_seconds_limit_the_graphs(compile_s: float | None, per_graph: float, graphs: int) -> None:
    assert GraphBudget(8, compile_s=compile_s).affordable_graphs(per_graph) == graphs


def test_a_graph_that_compiles_too_long_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"about 120\.0 s, which is over max_compile_seconds: 60"):
        GraphBudget(8, compile_s=60).affordable_graphs(default_costs("neuron").compile_s)


def test_memory_takes_candidates_out() -> None:
    assert GraphBudget(8).fitting(CANDIDATES, slot_bytes, 128) == CANDIDATES
    found = GraphBudget(8, memory_bytes=256 << 20).fitting(CANDIDATES, slot_bytes, 128)
    assert list(map(str, found)) == ["1x32", "8x32", "1x64", "1x128"]


def test_memory_that_holds_no_longest_row_is_an_error() -> None:
    with pytest.raises(ValueError, match="128 tokens takes about 128 MiB, which is over max_memory_mb: 100"):
        GraphBudget(8, memory_bytes=100 << 20).fitting(CANDIDATES, slot_bytes, 128)


def model(folder: Path, **config: object) -> Path:
    folder.mkdir()
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 3}
    (folder / "config.json").write_text(json.dumps({"model_type": "x", **sizes, **config}))
    save_file({"w": np.zeros(1000, np.float32)}, folder / "model.safetensors")
    return folder


def test_the_estimate_adds_weights_activations_scores_and_cache(tmp_path: Path) -> None:
    folder = model(tmp_path / "fp32")
    weights = (folder / "model.safetensors").stat().st_size
    shape = Shape(length=4, batch=3)
    activations, scores = 12 * (6 * 8 + 16), 3 * 2 * 4 * 4 * 4
    assert graph_bytes(folder, shape, "fp32") == weights + activations * 4 + scores
    assert graph_bytes(folder, shape, "bf16") == weights // 2 + activations * 2 + scores
    cache = 2 * 3 * 2 * 4 * 2  # keys and values, layers, heads, head size, bytes
    assert graph_bytes(folder, shape, "bf16", new_tokens=6) == weights // 2 + activations * 2 + scores + cache * 3 * 10


def test_weights_that_are_stored_in_two_bytes_and_shared_heads_count_so(tmp_path: Path) -> None:
    folder = model(tmp_path / "bf16", torch_dtype="bfloat16", num_key_value_heads=1, head_dim=5)
    weights = (folder / "model.safetensors").stat().st_size
    assert graph_bytes(folder, Shape(length=1, batch=1), "fp32", new_tokens=1) == (
        weights * 2 + (6 * 8 + 16) * 4 + 2 * 4 + 2 * 3 * 1 * 5 * 4 * 2
    )


def test_a_job_whose_budget_holds_no_graph_says_so_before_anything_is_compiled(
    tmp_path: Path, tiny_model: Path
) -> None:
    home = make_home(tmp_path, tiny_model, str(tmp_path), shapes="auto", compile="auto", max_memory_mb=1)
    put_rows(Objects().put, str(tmp_path), rows(40))
    done = home.command("run", str(home.file), "--ds", DS)
    assert done.returncode == 2, done.stderr
    assert "shapes: auto: a graph for 128 tokens takes about" in done.stderr
    assert "over max_memory_mb: 1; raise it, or lower max_length" in done.stderr
    assert done.stderr.count("max_memory_mb: 1") == 1, "a child's error is told once"
    assert not list(tmp_path.glob("out/predictions/**/*.parquet"))
