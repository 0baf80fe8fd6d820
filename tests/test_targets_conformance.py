"""What every target promises, tried on every target and architecture with random tiny models."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from artifact_tools import random_rows
from neuron_tools import exports_in_process, neuron_double
from numpy.typing import NDArray
from tiny_models import ARCHITECTURES, RARER, make_model

from compile.batches import TokenRow, batch_rows
from compile.compilations import compilations
from compile.errors import ArtifactError, ShapeMismatch
from compile.model import ModelInfo, read_model
from compile.reference import Reference
from compile.shapes import Shape
from compile.targets import EncoderBatch, Executable, load_target
from compile.targets.cpu import has_bf16

SHAPE, LONGER = Shape(length=40, batch=6), Shape(length=72, batch=3)
KINDS = [
    ("torch", "fp32"),
    ("openvino", "fp32"),
    ("onnxruntime", "fp32"),
    ("neuron", "fp32"),
    *([("openvino", "bf16"), ("torch", "bf16")] if has_bf16() else []),
]
NEAR = {"fp32": 1e-5, "bf16": 0.15}
NOT_EXPORTED = {"convbert", "flaubert", "phi", "xlm"}
"""Registered by optimum-neuron, and see test_neuron.py; phi's masks are beyond torch.jit.trace, hence the double."""
CASES = [(*kind, architecture) for kind in KINDS for architecture in ARCHITECTURES]
CASES += [("neuron", "fp32", architecture) for architecture in RARER if architecture not in NOT_EXPORTED]


@pytest.fixture(scope="module", autouse=True)
def _sdk_double() -> Iterator[None]:
    """Target neuron runs the real optimum-neuron over the double of the SDK."""
    with neuron_double(), exports_in_process():
        yield


@dataclass(frozen=True)
class Case:
    """One model, compiled by one target for SHAPE and LONGER."""

    target: str
    precision: str
    model_dir: Path
    model: ModelInfo
    folders: dict[Shape, Path]

    @functools.cached_property
    def loaded(self) -> dict[Shape, Executable]:
        target = load_target(self.target)
        return {shape: target.load(folder, shape, self.precision) for shape, folder in self.folders.items()}

    def run(self, rows: list[TokenRow], shape: Shape = SHAPE) -> NDArray[np.float32]:
        return self.loaded[shape].run(batch_rows(rows, shape, self.model.pad_token_id))

    def expected(self, rows: list[TokenRow]) -> NDArray[np.float32]:
        reference = Reference(self.model_dir, self.model.pad_token_id)
        return np.stack([reference.logits(row) for row in rows])


@pytest.fixture(scope="session")
def make_case(tmp_path_factory: pytest.TempPathFactory):
    """Compile a model of an architecture once per session and target."""

    @functools.cache
    def model_of(architecture: str, labels: int, problem_type: str | None) -> Path:
        folder = tmp_path_factory.mktemp("model") / architecture
        return make_model(folder, architecture, labels=labels, problem_type=problem_type)

    @functools.cache
    def work_of(target: str, model_dir: Path) -> Path:
        return tmp_path_factory.mktemp(f"work-{target}")

    @functools.cache
    def case(
        target: str, precision: str, architecture: str = "bert", labels: int = 3, problem_type: str | None = None
    ) -> Case:
        model_dir, toolchain = model_of(architecture, labels, problem_type), load_target(target)
        prepared = toolchain.prepare(model_dir, work_of(target, model_dir), precision, [])
        folders = {}
        for shape in (SHAPE, LONGER):
            folders[shape] = tmp_path_factory.mktemp(f"{target}-{precision}-{shape}")
            toolchain.compile(prepared, shape, precision, folders[shape])
        return Case(target, precision, model_dir, read_model(model_dir), folders)

    return case


every_kind = pytest.mark.parametrize(("target", "precision"), KINDS)
every_case = pytest.mark.parametrize(("target", "precision", "architecture"), CASES)


@every_case
def test_logits_are_the_reference_models(make_case, architecture: str, target: str, precision: str) -> None:
    case = make_case(target, precision, architecture)
    rows = random_rows(case.model, [2, 3, 11, 27, 39, 40])
    expected = case.expected(rows)
    assert expected.std() > 0.05, "a model with nearly constant logits would hide mistakes"
    assert np.abs(case.run(rows) - expected).max() < NEAR[precision]


@every_case
def test_padding_does_not_change_a_row(make_case, architecture: str, target: str, precision: str) -> None:
    case = make_case(target, precision, architecture)
    for row in random_rows(case.model, [2, 13, 40]):
        assert np.abs(case.run([row])[0] - case.run([row], LONGER)[0]).max() < NEAR[precision]


@every_case
def test_a_row_has_the_same_bytes_in_any_place_with_any_neighbours(
    make_case, architecture: str, target: str, precision: str
) -> None:
    case = make_case(target, precision, architecture)
    rows = random_rows(case.model, [17, 2, 40, 40, 9, 31])
    alone = [case.run([row])[0].tobytes() for row in rows]
    for turn in range(len(rows)):
        turned = [*rows[turn:], *rows[:turn]]
        logits = case.run(turned)
        assert [logits[index].tobytes() for index in range(len(rows))] == [*alone[turn:], *alone[:turn]]
    assert [line.tobytes() for line in case.run([rows[0]] * 6)] == [alone[0]] * 6


@every_kind
@pytest.mark.parametrize(
    ("labels", "problem_type"),
    [(1, None), (2, None), (17, None), (4, "multi_label_classification"), (1, "regression")],
)
def test_any_number_and_kind_of_labels(
    make_case, target: str, precision: str, labels: int, problem_type: str | None
) -> None:
    case = make_case(target, precision, "bert", labels, problem_type)
    rows = random_rows(case.model, [4, 40])
    logits = case.run(rows)
    assert logits.shape == (SHAPE.batch, labels)
    assert logits.dtype == np.float32
    assert np.abs(logits[:2] - case.expected(rows)).max() < NEAR[precision]


@every_kind
@pytest.mark.parametrize("architecture", ["bert", "electra"])
def test_pairs_depend_on_where_the_second_text_starts(
    make_case, architecture: str, target: str, precision: str
) -> None:
    case = make_case(target, precision, architecture)
    single = random_rows(case.model, [12])[0]
    rows = [TokenRow(single.token_ids, segment_b) for segment_b in (0, 4, 8)]
    logits, expected = case.run(rows), case.expected(rows)
    assert np.abs(logits[:3] - expected).max() < NEAR[precision]
    assert len({line.tobytes() for line in logits[:3]}) == 3


@every_kind
def test_any_other_shape_is_refused(make_case, target: str, precision: str) -> None:
    case = make_case(target, precision)
    row = random_rows(case.model, [5])
    for shape in (Shape(40, 5), Shape(40, 7), Shape(39, 6), Shape(41, 6), Shape(6, 40), LONGER):
        with pytest.raises(ShapeMismatch, match="6x40"):
            case.loaded[SHAPE].run(batch_rows(row, shape, case.model.pad_token_id))
    good = batch_rows(row, SHAPE, case.model.pad_token_id)
    with pytest.raises(ShapeMismatch, match="token_type_ids"):
        case.loaded[SHAPE].run(EncoderBatch(good.input_ids, good.attention_mask, good.token_type_ids[:, :-1]))


@every_kind
def test_nan_is_returned_as_it_is_and_in_its_row_only(make_case, target: str, precision: str, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    case = make_case(target, precision)
    folder = tmp_path / "model"
    folder.mkdir()
    for path in case.model_dir.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.embeddings.word_embeddings.weight"][9] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    toolchain = load_target(target)
    (tmp_path / "out").mkdir()
    toolchain.compile(toolchain.prepare(folder, tmp_path, precision, []), SHAPE, precision, tmp_path / "out")
    executable = toolchain.load(tmp_path / "out", SHAPE, precision)
    rows = [TokenRow(np.array([5, 6, 7])), TokenRow(np.array([5, 9, 7])), TokenRow(np.array([7, 6, 5]))]
    logits = executable.run(batch_rows(rows, SHAPE, case.model.pad_token_id))
    assert np.isnan(logits[1]).all()
    assert np.isfinite(logits[[0, 2, 3, 4, 5]]).all()


@every_kind
def test_another_process_loads_the_same_results_without_compiling(make_case, target: str, precision: str) -> None:
    case = make_case(target, precision)
    program = (
        "import sys; from pathlib import Path\n"
        "from artifact_tools import random_rows; from compile.batches import batch_rows\n"
        "from compile.compilations import compilations; from compile.model import read_model\n"
        "from compile.shapes import Shape; from compile.targets import load_target\n"
        "model_dir, folder, name, precision = sys.argv[1:]; shape = Shape(length=40, batch=6)\n"
        "model = read_model(Path(model_dir)); rows = random_rows(model, [5, 40, 22])\n"
        "executable = load_target(name).load(Path(folder), shape, precision)\n"
        "print(executable.run(batch_rows(rows, shape, model.pad_token_id)).tobytes().hex(), compilations())\n"
    )
    arguments = [str(case.model_dir), str(case.folders[SHAPE]), target, precision]
    out = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert out == [case.run(random_rows(case.model, [5, 40, 22])).tobytes().hex(), "0"]


@every_kind
def test_loading_compiles_nothing_and_compiling_counts(make_case, target: str, precision: str, tmp_path: Path) -> None:
    case, toolchain = make_case(target, precision), load_target(target)
    before = compilations()
    toolchain.load(case.folders[SHAPE], SHAPE, precision)
    assert compilations() == before
    prepared = toolchain.prepare(case.model_dir, tmp_path / "work", precision, [])
    (tmp_path / "out").mkdir()
    toolchain.compile(prepared, SHAPE, precision, tmp_path / "out")
    assert compilations() == before + 1


@every_kind
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "garbage"])
def test_damaged_files_are_an_artifact_error(
    make_case, target: str, precision: str, damage: str, tmp_path: Path
) -> None:
    case = make_case(target, precision)
    for path in case.folders[SHAPE].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    graph = (
        tmp_path
        / {
            "torch": "model.safetensors",
            "openvino": "shape.blob",
            "onnxruntime": "model.onnx",
            "neuron": "model.neuron",
        }[target]
    )
    data = graph.read_bytes()
    if damage == "missing":
        graph.unlink()
    else:
        graph.write_bytes({"empty": b"", "cut": data[: len(data) // 3], "garbage": b"\x00garbage\xff" * 999}[damage])
    with pytest.raises(ArtifactError, match=rf"{target}.*6x40"):
        load_target(target).load(tmp_path, SHAPE, precision)


@pytest.mark.parametrize("target", ["openvino", "onnxruntime", "neuron"])
def test_an_artifact_of_another_shape_is_refused_at_load(make_case, target: str) -> None:
    case = make_case(target, "fp32")
    with pytest.raises(ArtifactError, match="not compiled for 3x72"):
        load_target(target).load(case.folders[SHAPE], LONGER, "fp32")


@pytest.mark.parametrize("target", ["torch", "openvino", "onnxruntime", "neuron"])
def test_a_target_describes_itself(target: str) -> None:
    toolchain = load_target(target)
    assert toolchain.name == target
    assert toolchain.unavailable() is None
    assert toolchain.default_precision() in toolchain.precisions
    assert toolchain.supports(toolchain.default_precision()) is None
    assert "choose one of" in str(toolchain.supports("fp8"))
    assert {"torch", "transformers"} <= set(toolchain.versions())
    candidates = toolchain.candidates(100)
    assert candidates == sorted(set(candidates))
    assert candidates[-1].length == 100
    few = {32, 64, 96, 100}
    assert (few if target == "neuron" else {8, 16, 96, 100}) <= {shape.length for shape in candidates}


def test_an_unknown_target_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"'tpu'.*openvino, torch, onnxruntime, neuron"):
        load_target("tpu")
