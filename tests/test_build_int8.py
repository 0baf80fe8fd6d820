"""int8: scales measured on real rows, one conversion for all shapes, gated by parity and by accuracy on labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from artifact_tools import build, open_store, random_rows

from compile.accuracy import Accuracy, LabelledRow, judge_accuracy, measure_accuracy
from compile.artifacts import artifact_spec
from compile.build import build_missing
from compile.conversions import conversion_uri
from compile.costs import default_costs
from compile.errors import CompileError
from compile.model import read_model
from compile.parity import TOLERANCES, ParityRecord, Tolerance
from compile.planner import make_plan
from compile.reference import Reference
from compile.shapes import Shape
from compile.targets import load_target
from compile.upkeep import gc

SHAPES = [Shape(length=16, batch=8), Shape(length=40, batch=4)]
WIDE = Tolerance(max_abs_logit=10, mean_abs_logit=10, max_label_flips=1, max_accuracy_drop=1)
"""For what is not about parity: int8 moves a random tiny model far, as its logits hang on single numbers."""


def labelled_rows(model_dir: Path, wrong: int = 0) -> list[LabelledRow]:
    """Rows whose label is what fp32 says, but for the first `wrong` of them."""
    model = read_model(model_dir)
    reference = Reference(model_dir, model.pad_token_id)
    rows = random_rows(model, [5 + index % 30 for index in range(48)], seed=3)
    labels = [int(reference.logits(row).argmax()) for row in rows]
    return [LabelledRow(row, (labels[index] + (index < wrong)) % 3) for index, row in enumerate(rows)]


def test_int8_is_built_from_one_conversion_for_all_shapes(tmp_path: Path, tiny_model: Path) -> None:
    store, model = open_store(tmp_path), read_model(tiny_model)
    first = build(store, tiny_model, SHAPES[:1], target="openvino", precision="int8", tolerance=WIDE)[0]
    other_rows = random_rows(model, [6, 12, 24, 40], seed=99)
    second = build(store, tiny_model, SHAPES, target="openvino", precision="int8", rows=other_rows, tolerance=WIDE)
    assert second[0] == first
    assert second[1].files["model.bin"] == first.files["model.bin"]
    fp32 = build(store, tiny_model, SHAPES[:1], target="openvino", precision="fp32")[0]
    assert first.files["model.bin"].size_bytes < fp32.files["model.bin"].size_bytes / 2
    assert first.parity is not None
    assert fp32.parity is not None
    assert first.parity.max_abs_logit > fp32.parity.max_abs_logit
    for manifest in (first, *second):
        assert store.load(manifest.spec, load_target("openvino")).shape == manifest.spec.shape


def test_gc_keeps_a_conversion_while_an_artifact_comes_from_it(tmp_path: Path, tiny_model: Path) -> None:
    store = open_store(tmp_path)
    manifest = build(store, tiny_model, SHAPES[:1], target="openvino", precision="int8", tolerance=WIDE)[0]
    assert gc(store, {manifest.key}, now_s=0, grace_s=0).blobs == ()
    again = build(store, tiny_model, SHAPES, target="openvino", precision="int8", rows=None, tolerance=WIDE)
    assert again[1].files["model.bin"] == manifest.files["model.bin"]
    assert store.blobs.exists(conversion_uri(store, manifest.spec))
    gc(store, (), now_s=0, grace_s=0)
    assert not store.blobs.exists(conversion_uri(store, manifest.spec))
    assert store.blobs.list(f"{store.uri}/blobs/") == []


def test_int8_beyond_the_tolerance_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(CompileError, match="int8: 8x16 is refused: the largest logit difference"):
        build(store, tiny_model, SHAPES, target="openvino", precision="int8", tolerance=TOLERANCES["fp32"])
    assert store.artifact_keys() == []


def build_labelled(
    folder: Path, model_dir: Path, labelled: Sequence[LabelledRow], target: str, tolerance: Tolerance
) -> ParityRecord:
    model = read_model(model_dir)
    manifests = build_missing(
        open_store(folder),
        load_target(target),
        model,
        model_dir,
        make_plan(SHAPES, default_costs(target)),
        "fp32",
        random_rows(model, [4, 14, 30]),
        tolerance,
        labelled=labelled,
    )
    record = manifests[-1].parity
    assert record is not None
    return record


def test_accuracy_on_labelled_rows_is_in_the_record(tmp_path: Path, tiny_model: Path) -> None:
    labelled = labelled_rows(tiny_model, wrong=12)
    record = build_labelled(tmp_path, tiny_model, labelled, "openvino", TOLERANCES["fp32"])
    assert record.accuracy == Accuracy(rows=48, correct=36, reference_correct=36)
    assert ParityRecord.from_json(record.to_json()) == record


def test_a_graph_that_is_less_often_right_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    from tiny_models import make_model

    model = read_model(tiny_model)
    toolchain = load_target("torch")
    other = make_model(tmp_path / "other", seed=5)
    executable = toolchain.load(other, SHAPES[1], "fp32")
    found = measure_accuracy(executable, labelled_rows(tiny_model), Reference(tiny_model, model.pad_token_id), model)
    assert found is not None
    assert (found.rows, found.reference_correct) == (48, 48)
    assert found.correct < 48
    assert "labelled rows falls from 1.000" in judge_accuracy(found, 0.01)[0]
    assert judge_accuracy(found, found.drop) == ()
    assert judge_accuracy(None, 0.0) == ()


def test_int8_without_rows_says_what_it_needs(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(CompileError, match="int8 needs real rows"):
        load_target("openvino").prepare(tiny_model, tmp_path, "int8", [])


def test_int8_has_a_key_of_its_own(tiny_model: Path) -> None:
    target, model = load_target("openvino"), read_model(tiny_model)
    keys = {artifact_spec(target, model, SHAPES[0], precision).key for precision in target.precisions}
    assert len(keys) == len(target.precisions)
