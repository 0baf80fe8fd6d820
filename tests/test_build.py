"""Building: what is refused and why, what is reused, and that nothing loadable is left by a build that failed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from artifact_tools import build, open_store, random_rows
from tiny_models import make_model

from compile.artifacts import ArtifactStore, artifact_spec
from compile.batches import TokenRow, batch_rows
from compile.build import build_artifact
from compile.compilations import compilations
from compile.errors import ArtifactError, CompileError, ModelError
from compile.model import read_model
from compile.parity import TOLERANCES, Tolerance
from compile.reference import Reference
from compile.samples import choose_samples
from compile.shapes import Shape
from compile.targets import load_target

SHAPE = Shape(length=32, batch=4)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return open_store(tmp_path)


@pytest.fixture
def model_dir(tmp_path: Path, tiny_model: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def change_weight(model_dir: Path, name: str, value: float | None) -> None:
    """Set one number of a tensor (None: add 1 to the whole tensor)."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(model_dir / "model.safetensors")
    if value is None:
        tensors[name] += 1
    else:
        tensors[name].view(-1)[0] = value
    save_file(tensors, model_dir / "model.safetensors", metadata={"format": "pt"})


def nothing_was_published(store: ArtifactStore) -> bool:
    return store.artifact_keys() == []


@pytest.mark.parametrize("target", ["torch", "openvino", "onnxruntime"])
def test_a_second_build_reuses_and_compiles_nothing(store: ArtifactStore, tiny_model: Path, target: str) -> None:
    shapes = [Shape(16, 8), SHAPE]
    lines: list[str] = []
    built = build(store, tiny_model, shapes, target=target, lines=lines)
    before = compilations()
    again = build(store, tiny_model, shapes, target=target, lines=lines)
    assert again == built
    assert compilations() == before
    assert [line.split(":")[1].split()[0] for line in lines] == ["built", "built", "reused", "reused"]
    assert [manifest.spec.shape for manifest in built] == sorted(shapes)


def test_compilations_are_counted_whoever_compiles(store: ArtifactStore, tiny_model: Path, tmp_path: Path) -> None:
    target = load_target("openvino")
    prepared = target.prepare(tiny_model, tmp_path / "work", "fp32", [])
    before = compilations()
    import openvino

    openvino.Core().compile_model(openvino.Core().read_model(prepared / "model.xml"), "CPU")
    openvino.compile_model(openvino.Core().read_model(prepared / "model.xml"), "CPU")
    assert compilations() == before + 2


@pytest.mark.parametrize("target", ["openvino", "onnxruntime"])
def test_a_perturbed_weight_fails_the_build(
    store: ArtifactStore, tiny_model: Path, tmp_path: Path, target: str
) -> None:
    toolchain, model = load_target(target), read_model(tiny_model)
    work = tmp_path / "work"
    # The converted model is changed between conversion and compilation, as a broken converter would.
    other = make_model(tmp_path / "other", seed=9)
    toolchain.prepare(other, work, "fp32", [])
    with pytest.raises(CompileError, match=r"4x32 is refused: the largest logit difference from fp32 is"):
        build_artifact(
            store,
            toolchain,
            model,
            tiny_model,
            artifact_spec(toolchain, model, SHAPE, "fp32"),
            random_rows(model, [3, 9, 30]),
            TOLERANCES["fp32"],
            work,
        )
    assert nothing_was_published(store)


def test_one_perturbed_number_is_seen_in_fp32(store: ArtifactStore, tiny_model: Path, tmp_path: Path) -> None:
    toolchain, model = load_target("openvino"), read_model(tiny_model)
    other = Path(shutil.copytree(tiny_model, tmp_path / "other"))
    change_weight(other, "bert.encoder.layer.0.output.dense.weight", 0.9)
    toolchain.prepare(other, tmp_path / "work", "fp32", [])
    spec = artifact_spec(toolchain, model, SHAPE, "fp32")
    rows = random_rows(model, [3, 9, 30])
    with pytest.raises(CompileError, match="logit difference"):
        build_artifact(store, toolchain, model, tiny_model, spec, rows, TOLERANCES["fp32"], tmp_path / "work")
    assert nothing_was_published(store)


@pytest.mark.parametrize("target", ["torch", "openvino", "onnxruntime"])
def test_an_injected_nan_fails_the_build(store: ArtifactStore, model_dir: Path, target: str) -> None:
    change_weight(model_dir, "classifier.weight", float("nan"))
    with pytest.raises(CompileError, match="logits are NaN"):
        build(store, model_dir, [SHAPE], target=target)
    assert nothing_was_published(store)


def test_a_wrong_pad_id_is_refused(store: ArtifactStore, model_dir: Path, tmp_path: Path) -> None:
    toolchain, model = load_target("torch"), read_model(model_dir)
    rows = random_rows(model, [3, 9, 30])
    wrong = replace(model, pad_token_id=int(rows[0].token_ids[0]))
    spec = artifact_spec(toolchain, wrong, SHAPE, "fp32")
    with pytest.raises(CompileError, match="pad_token_id differ"):
        build_artifact(store, toolchain, wrong, model_dir, spec, rows, TOLERANCES["fp32"], tmp_path / "work")

    config = json.loads((model_dir / "config.json").read_text())
    (model_dir / "config.json").write_text(json.dumps(config | {"pad_token_id": 7}))
    with pytest.raises(ModelError, match=r"pad_token_id 7.*tokenizer's pad token is 0"):
        read_model(model_dir)

    (model_dir / "tokenizer.json").unlink()
    padded = [*rows, TokenRow(np.array([9, 8, 7]))]
    with pytest.raises(CompileError, match="contain the pad id 7"):
        build(store, model_dir, [SHAPE], rows=padded)
    assert nothing_was_published(store)


def test_a_spec_of_other_versions_is_not_built(store: ArtifactStore, tiny_model: Path, tmp_path: Path) -> None:
    toolchain, model = load_target("torch"), read_model(tiny_model)
    spec = replace(artifact_spec(toolchain, model, SHAPE, "fp32"), versions=(("torch", "1.0"),))
    with pytest.raises(CompileError, match="not one that this machine builds"):
        build_artifact(
            store, toolchain, model, tiny_model, spec, random_rows(model, [5]), TOLERANCES["fp32"], tmp_path / "work"
        )
    assert nothing_was_published(store)


def test_a_record_from_another_version_is_built_anew(store: ArtifactStore, tiny_model: Path) -> None:
    manifest = build(store, tiny_model, [SHAPE])[0]
    assert manifest.parity is not None
    old = replace(manifest, parity=replace(manifest.parity, versions={"torch": "1.0"}))
    store.blobs.put(f"{store.uri}/manifests/{manifest.key}.json", json.dumps(old.to_json()).encode())
    with pytest.raises(ArtifactError, match="other versions"):
        store.load(manifest.spec, load_target("torch"))
    again = build(store, tiny_model, [SHAPE])[0]
    assert again.parity is not None
    assert again.parity.versions == manifest.parity.versions
    assert store.load(manifest.spec, load_target("torch")).shape == SHAPE


def test_the_job_states_the_tolerance(store: ArtifactStore, tiny_model: Path) -> None:
    with pytest.raises(CompileError, match="logit difference"):
        build(store, tiny_model, [SHAPE], target="openvino", tolerance=Tolerance(1e-12, 1e-12))
    assert nothing_was_published(store)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": []}, "give real rows"),
        ({"rows": [TokenRow(np.array([99_999]))]}, "another tokenizer"),
        ({"shapes": [Shape(length=256, batch=1)]}, "128 positions"),
        ({"precision": "int4", "tolerance": TOLERANCES["fp32"]}, "choose one of"),
    ],
)
def test_what_cannot_be_built_is_said(
    store: ArtifactStore, tiny_model: Path, change: dict[str, object], message: str
) -> None:
    arguments: dict[str, object] = {"shapes": [SHAPE], **change}
    with pytest.raises(CompileError, match=message):
        build(store, tiny_model, **arguments)  # type: ignore[arg-type]
    assert nothing_was_published(store)


def test_weights_without_a_head_are_an_error_not_random_numbers(store: ArtifactStore, model_dir: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(model_dir / "model.safetensors")
    del tensors["classifier.weight"]
    save_file(tensors, model_dir / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"no weights for: classifier\.weight"):
        build(store, model_dir, [SHAPE], target="openvino")


def test_samples_cover_the_shortest_the_longest_and_a_row_that_fills_the_shape(tiny_model: Path) -> None:
    model = read_model(tiny_model)
    rows = random_rows(model, [*range(3, 60), 90])
    chosen = choose_samples(rows, Shape(length=64, batch=2), model.max_positions)
    lengths = [len(sample.row) for sample in chosen]
    assert lengths[0] == 3
    assert 59 in lengths
    assert (lengths[-1], chosen[-1].made) == (64, True)
    assert len(chosen) <= 16
    assert not any(sample.made for sample in chosen[:-1])
    real = choose_samples(rows, Shape(length=90, batch=2), model.max_positions)
    assert not any(sample.made for sample in real)


def test_the_record_says_what_was_covered(store: ArtifactStore, tiny_model: Path) -> None:
    model = read_model(tiny_model)
    record = build(store, tiny_model, [SHAPE], rows=random_rows(model, [4, 11, 25]), target="openvino")[0].parity
    assert record is not None
    assert (record.lengths, record.made_rows, record.moved_rows, record.nan_count) == ((4, 11, 25, 32), 1, 0, 0)
    assert record.rows > 8
    assert 0 < record.max_abs_logit < 1e-3


def test_the_reference_is_the_plain_transformers_model(tiny_model: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    text = ("a good movie", "how are you today?")
    encoded = AutoTokenizer.from_pretrained(tiny_model)(*text, return_tensors="pt")
    with torch.inference_mode():
        expected = AutoModelForSequenceClassification.from_pretrained(tiny_model).eval()(**encoded).logits[0].numpy()
    row = TokenRow(encoded["input_ids"][0].numpy(), int(encoded["token_type_ids"].sum()))
    assert row.segment_b > 0
    model = read_model(tiny_model)
    assert np.array_equal(Reference(tiny_model, model.pad_token_id).logits(row), expected)


def test_batches_pad_right_and_padding_rows_attend_to_one_position() -> None:
    rows = [TokenRow(np.array([5, 6, 7]), segment_b=1), TokenRow(np.array([8]))]
    batch = batch_rows(rows, Shape(length=4, batch=3), 0)
    assert batch.input_ids.tolist() == [[5, 6, 7, 0], [8, 0, 0, 0], [0, 0, 0, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    assert batch.token_type_ids.tolist() == [[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert {array.dtype for array in (batch.input_ids, batch.attention_mask, batch.token_type_ids)} == {np.dtype("i8")}


@pytest.mark.parametrize("lengths", [[5], [1, 1, 1, 1], [0]])
def test_rows_that_do_not_fit_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        batch_rows([TokenRow(np.full(length, 5)) for length in lengths], Shape(length=4, batch=3), 0)
