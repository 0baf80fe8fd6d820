"""Target `neuron` on encoders over the double of the SDK: what is asked of optimum-neuron, what is refused and why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from artifact_tools import build, open_store, random_rows
from neuron_tools import events, exports_in_process, neuron_double
from tiny_models import make_model

from compile.artifacts import artifact_spec
from compile.batches import batch_rows
from compile.build import adopt_artifact
from compile.errors import ArtifactError, CompileError, DeviceError, ShapeMismatch, TargetUnavailable
from compile.model import read_model
from compile.neuron_settings import NeuronSettings
from compile.parity import TOLERANCES
from compile.shapes import Shape
from compile.targets import load_target, without_device

SHAPE = Shape(length=16, batch=4)


@pytest.fixture(scope="module", autouse=True)
def _sdk_double() -> Iterator[None]:
    with neuron_double(), exports_in_process():
        yield


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the double is asked for."""
    monkeypatch.setenv("NEURON_DOUBLE_LOG", str(tmp_path / "double.jsonl"))
    return tmp_path / "double.jsonl"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, _sdk_double: None) -> Path:
    """An export of the tiny model in bf16."""
    return export(tiny_model, tmp_path_factory.mktemp("exported"))


def export(model_dir: Path, folder: Path, precision: str = "bf16", settings: NeuronSettings | None = None) -> Path:
    load_target("neuron", settings).compile(model_dir, SHAPE, precision, folder)
    return folder


def run(folder: Path, model_dir: Path, tokens: list[int] | None = None) -> np.ndarray:
    """Logits of a batch that holds those tokens in its second row."""
    model = read_model(model_dir)
    rows = random_rows(model, [9, 4, 16])
    rows[1].token_ids[:1] = tokens or rows[1].token_ids[:1]
    return load_target("neuron").load(folder, SHAPE, "bf16").run(batch_rows(rows, SHAPE, model.pad_token_id))


@pytest.mark.parametrize(
    ("precision", "settings", "flags", "stored"),
    [
        (
            "bf16",
            NeuronSettings(),
            "--auto-cast matmult --auto-cast-type bf16 --optlevel 2 --target inf2",
            ("matmul", "bf16"),
        ),
        ("fp32", NeuronSettings(), "--auto-cast none --optlevel 2 --target inf2", (None, None)),
        (
            "bf16",
            NeuronSettings(auto_cast="all", auto_cast_type="fp16", optlevel="3", instance_type="trn1"),
            "--auto-cast all --auto-cast-type fp16 --optlevel 3 --target trn1",
            ("all", "fp16"),
        ),
    ],
)
def test_settings_reach_the_compiler_and_the_export(
    tiny_model: Path, tmp_path: Path, log: Path, precision: str, settings: NeuronSettings, flags: str, stored: tuple
) -> None:
    export(tiny_model, tmp_path, precision, settings)
    (compiled,) = events(log, "compile")
    assert " ".join(compiled["arguments"]) == f"{flags} --model-type transformer"
    assert compiled["shape"] == "4x16"
    section = json.loads((tmp_path / "config.json").read_text())["neuron"]
    assert (section["auto_cast"], section["auto_cast_type"]) == stored
    assert (section["optlevel"], section["instance_type"]) == (settings.optlevel, settings.instance_type)
    assert (section["static_batch_size"], section["static_sequence_length"]) == (4, 16)
    assert "tokenizer.json" in {path.name for path in tmp_path.iterdir()}


def test_the_folder_of_the_model_does_not_choose_the_compilers_flags(
    tiny_model: Path, tmp_path: Path, log: Path
) -> None:
    """optimum-neuron looks for words such as `vae` and `transformer` in the path that a model was loaded from."""
    model_dir = tmp_path / "vae-unet-transformers"
    shutil.copytree(tiny_model, model_dir)
    (tmp_path / "out").mkdir()
    export(model_dir, tmp_path / "out")
    assert events(log, "compile")[0]["arguments"][-2:] == ["--model-type", "transformer"]


@pytest.mark.parametrize(
    ("settings", "precision", "message"),
    [
        (NeuronSettings(auto_cast="matmul"), "fp32", "fp32 casts nothing"),
        (NeuronSettings(auto_cast_type="bf16"), "fp32", "fp32 casts nothing"),
        (NeuronSettings(auto_cast="none"), "bf16", "not to nothing"),
        (NeuronSettings(auto_cast_type="fp16"), "bf16", "bf16 casts to bf16, not to fp16"),
        (NeuronSettings(auto_cast="none", auto_cast_type="bf16"), "auto", "casts nothing to bf16"),
        (NeuronSettings(auto_cast="all", auto_cast_type="tf32"), "auto", None),
        (NeuronSettings(auto_cast="all"), "bf16", None),
        (NeuronSettings(auto_cast="none"), "fp32", None),
    ],
)
def test_settings_that_contradict_the_precision(settings: NeuronSettings, precision: str, message: str | None) -> None:
    found = settings.contradiction(precision)
    assert found is None if message is None else message in str(found)


def test_candidates_are_few() -> None:
    candidates = load_target("neuron").candidates(512)
    assert sorted({shape.length for shape in candidates}) == [32, 64, 96, 128, 192, 256, 320, 384, 448, 512]
    assert sorted({shape.batch for shape in candidates}) == [1, 2, 4, 8, 16]


@pytest.mark.parametrize(("architecture", "reason"), [("xlm", "embeds them as words"), ("flaubert", "as words")])
def test_registered_architectures_that_would_compute_something_else(
    tmp_path: Path, architecture: str, reason: str
) -> None:
    with pytest.raises(CompileError, match=f"{architecture}.*{reason}"):
        load_target("neuron").prepare(make_model(tmp_path / "m", architecture), tmp_path, "fp32", [])


def test_an_architecture_that_optimum_neuron_lacks_names_those_that_it_has(tmp_path: Path, tiny_model: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text()) | {"model_type": "nystromformer"}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CompileError, match=r"nystromformer.*it has: albert, bert, .*xlm-roberta"):
        load_target("neuron").prepare(tmp_path / "m", tmp_path, "fp32", [])


def test_a_model_whose_results_depend_on_padding_is_refused_by_the_gate(tmp_path: Path) -> None:
    """ConvBERT convolves over padding: no static shape computes what it computes without."""
    with pytest.raises(CompileError, match="logit difference"):
        build(open_store(tmp_path), make_model(tmp_path / "m", "convbert"), [SHAPE], target="neuron")


def test_only_the_compiled_shape_and_dtypes_are_taken(exported: Path, tiny_model: Path) -> None:
    import torch

    executable = load_target("neuron").load(exported, SHAPE, "bf16")
    model = read_model(tiny_model)
    with pytest.raises(ShapeMismatch, match="4x16"):
        executable.run(batch_rows(random_rows(model, [3]), Shape(length=16, batch=3), model.pad_token_id))
    graph = torch.jit.load(exported / "model.neuron")
    for wrong in (torch.ones(4, 15, dtype=torch.long), torch.ones(4, 16, dtype=torch.int32)):
        with pytest.raises(RuntimeError, match=r"takes .* and nothing else"):
            graph(wrong, wrong, wrong)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"NEURON_DOUBLE_HOST": ""}, "no Neuron device.*use an inf2 host"),
        (
            {"NEURON_DOUBLE_HOST": "trn2.48xlarge:1"},
            "of the kind trn2, and neuron.instance_type inf2 compiles for trn1",
        ),
        ({"NEURON_RT_VISIBLE_CORES": "2"}, "names core 2, and this host has cores 0 to 1"),
        ({"NEURON_RT_VISIBLE_CORES": "0-3"}, "names core 2"),
        ({"NEURON_RT_VISIBLE_CORES": "one"}, "'one' is not a core"),
        ({"NEURON_RT_NUM_CORES": "0"}, "runtime does not start.*NRT_INVALID.*neuron-ls"),
        ({"NEURON_DOUBLE_MEMORY": "4096"}, "does not fit into the core's device memory.*neuron-top.*smaller batches"),
    ],
)
def test_a_host_that_cannot_run_it_says_what_to_do(
    exported: Path, variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    host = variables.get("NEURON_DOUBLE_HOST", "inf2.xlarge:1")
    with neuron_double(host or None), pytest.raises(TargetUnavailable, match=rf"neuron: 4x16 .*{message}"):
        load_target("neuron").load(exported, SHAPE, "bf16")


def test_another_compiler_is_named(exported: Path) -> None:
    with (
        neuron_double(cc_version="2.20.1"),
        pytest.raises(ArtifactError, match=r"compiler_version 2\.21\.\S* instead of 2\.20\.1"),
    ):
        load_target("neuron").load(exported, SHAPE, "bf16")


def test_another_way_of_compiling_is_named(exported: Path) -> None:
    with pytest.raises(ArtifactError, match="auto_cast matmul instead of none, auto_cast_type bf16 instead of none"):
        load_target("neuron").load(exported, SHAPE, "fp32")
    with pytest.raises(ArtifactError, match="instance_type inf2 instead of trn1"):
        load_target("neuron", NeuronSettings(instance_type="trn1")).load(exported, SHAPE, "bf16")


def test_faults_of_the_device(exported: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_DOUBLE_EXECUTE", "nan@4x16")
    monkeypatch.setenv("NEURON_DOUBLE_TOKEN", "4")
    assert np.isfinite(run(exported, tiny_model)).all()
    found = run(exported, tiny_model, tokens=[4])
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2, 3]]).all()
    monkeypatch.setenv("NEURON_DOUBLE_EXECUTE", "raise")
    with pytest.raises(DeviceError, match=r"4x16: .*nrt_execute status=1 message=Failure"):
        run(exported, tiny_model, tokens=[4])


def test_compiled_without_a_device_it_is_pending_until_it_was_proven_on_one(
    tiny_model: Path, tmp_path: Path, log: Path
) -> None:
    store, lines = open_store(tmp_path), []
    with neuron_double(None, log=log):
        assert "no Neuron device" in str(without_device(load_target("neuron")))
        (made,) = build(store, tiny_model, [SHAPE], target="neuron", precision="bf16", lines=lines)
        assert (made.parity, made.timing) == (None, None)
        build(store, tiny_model, [SHAPE], target="neuron", precision="bf16", lines=lines)
        assert ["pending" in line for line in lines] == [True, True]
    assert [event["event"] for event in events(log)] == ["compile"]
    with pytest.raises(ArtifactError, match=r"parity is pending.*compile --verify"):
        store.load(made.spec, load_target("neuron"))
    assert "pending" in store.verify(made.key)[0]
    (proven,) = build(store, tiny_model, [SHAPE], target="neuron", precision="bf16", lines=lines)
    assert "proved" in lines[-1]
    assert len(events(log, "compile")) == 1
    assert proven.parity is not None
    assert proven.parity.passed
    assert proven.timing is not None
    fresh = open_store(tmp_path, cache="other")
    assert fresh.manifest(made.key) == proven
    assert fresh.verify(made.key) == []
    fresh.load(made.spec, load_target("neuron"))
    store.remove(made.key)
    assert store.blobs.list(f"{store.uri}/proofs/") == []


def test_a_proof_is_of_the_files_that_were_proven(tiny_model: Path, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with neuron_double(None):
        (made,) = build(store, tiny_model, [SHAPE], target="neuron", precision="bf16")
    build(store, tiny_model, [SHAPE], target="neuron", precision="bf16")
    changed = made.to_json()
    changed["files"]["model.neuron"] = changed["files"]["config.json"]
    store.blobs.put(store.manifest_uri(made.key), json.dumps(changed).encode())
    found = store.manifest(made.key)
    assert found is not None
    assert found.parity is None


def test_a_pending_artifact_that_is_not_faithful_stays_pending(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    with neuron_double(None):
        (made,) = build(store, tiny_model, [SHAPE], target="neuron", precision="bf16")
    monkeypatch.setenv("NEURON_DOUBLE_EXECUTE", "nan")
    with pytest.raises(CompileError, match="NaN"):
        build(store, tiny_model, [SHAPE], target="neuron", precision="bf16")
    assert store.manifest(made.key) == made


def test_optimum_neuron_itself_loads_an_artifact_from_the_store(
    exported: Path, tiny_model: Path, tmp_path: Path
) -> None:
    from optimum.neuron import NeuronModelForSequenceClassification

    store = open_store(tmp_path)
    target, model = load_target("neuron"), read_model(tiny_model)
    spec = artifact_spec(target, model, SHAPE, "bf16")
    samples = random_rows(model, [3, 9, 16])
    made = adopt_artifact(store, target, model, tiny_model, spec, exported, samples, TOLERANCES["bf16"])
    assert made.parity is not None
    with store.directory(made) as folder:
        loaded = NeuronModelForSequenceClassification.from_pretrained(folder)
    assert loaded.input_static_shapes["input_ids"] == (4, 16)
    assert loaded.config.id2label == {0: "label-0", 1: "label-1", 2: "label-2"}
