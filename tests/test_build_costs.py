"""Measured costs: builds and probes leave them in the store, and the next plan is made with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from artifact_tools import build, open_store, random_rows

from compile.costs import default_costs, job_costs, probed_uri
from compile.model import read_model
from compile.planner import plan_shapes
from compile.probe import probe_costs, probe_shapes
from compile.shapes import Shape
from compile.targets import load_target


def test_a_build_leaves_measured_costs_for_its_target_model_and_precision_only(
    tmp_path: Path, tiny_model: Path
) -> None:
    store, model = open_store(tmp_path), read_model(tiny_model)
    torch, openvino = load_target("torch"), load_target("openvino")
    manifest = build(store, tiny_model, [Shape(32, 4)])[0]
    assert manifest.timing is not None
    assert job_costs(store, torch, model, "fp32").seconds(Shape(32, 4)) == (manifest.timing.median_s, True)
    assert job_costs(store, torch, model, "fp32").seconds(Shape(32, 5))[1] is False
    assert job_costs(store, torch, model, "fp32").load_s == manifest.timing.load_s > 0
    for target, precision in ((torch, "bf16"), (openvino, "fp32")):
        found, default = job_costs(store, target, model, precision), default_costs(target.name)
        assert (found.fitted, found.measured, found.load_s) == (default.fitted, default.measured, default.load_s)
    assert job_costs(store, torch, model, "bf16").compile_s == manifest.compile_seconds, "compiling tells of its target"
    assert job_costs(store, openvino, model, "fp32").compile_s == default_costs("openvino").compile_s


def test_a_probe_measures_once_and_leaves_nothing_that_can_be_loaded(tmp_path: Path, tiny_model: Path) -> None:
    store, model, target = open_store(tmp_path), read_model(tiny_model), load_target("torch")
    rows = random_rows(model, [4, 20, 60])
    lines: list[str] = []
    costs = probe_costs(store, target, model, tiny_model, "fp32", rows, 64, lines.append)
    shapes = probe_shapes(target, 64)
    assert {shape.length for shape in shapes} == {32, 64}
    assert [line.split(":")[0] for line in lines] == [str(shape) for shape in shapes]
    assert all(costs.seconds(shape)[1] and costs.seconds(shape)[0] > 0 for shape in shapes)
    assert costs.load_s > 0
    assert costs.load_s != default_costs("torch").load_s
    assert store.artifact_keys() == []
    assert probe_costs(store, target, model, tiny_model, "fp32", rows, 64, lines.append) == costs
    assert len(lines) == len(shapes)
    counts = np.bincount([len(row) for row in rows], minlength=65)
    assert plan_shapes(counts, costs, target.candidates(64), 2, 64).max_length == 64


def test_damaged_costs_are_as_good_as_none(tmp_path: Path, tiny_model: Path) -> None:
    store, model, target = open_store(tmp_path), read_model(tiny_model), load_target("torch")
    for data in (
        b"",
        b"[]",
        b'{"shapes": {"8x": 1}, "load_s": 1}',
        b'{"shapes": {"8x8": null}, "load_s": 1}',
        b'{"8x8": 1}',
    ):
        store.blobs.put(probed_uri(store, target, model, "fp32"), data)
        assert job_costs(store, target, model, "fp32") == default_costs("torch")
