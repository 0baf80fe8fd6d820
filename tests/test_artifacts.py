"""The artifact store: what a key covers, create-once, the parity gate at load, damage, verify and gc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from artifact_tools import build, open_store, random_rows
from tiny_models import make_model

from compile.artifacts import ArtifactSpec, ArtifactStore, Manifest, artifact_spec
from compile.batches import batch_rows
from compile.compilations import compilations
from compile.errors import ArtifactError
from compile.model import read_model
from compile.shapes import Shape, canonical_json
from compile.targets import load_target
from compile.upkeep import gc

SHAPE = Shape(length=32, batch=4)
SPEC = ArtifactSpec(
    model_digest="d" * 64,
    target="openvino",
    precision="bf16",
    versions=(("openvino", "2026.4.1"),),
    machine="x86_64-GenuineIntel-6-143-amx_bf16",
    options=(("NUM_STREAMS", "1"),),
    shape=SHAPE,
)


@pytest.fixture
def stored(tmp_path: Path, tiny_model: Path) -> tuple[ArtifactStore, Manifest]:
    """A store with one artifact of the tiny model, for the torch target."""
    store = open_store(tmp_path)
    return store, build(store, tiny_model, [SHAPE])[0]


def rewrite(store: ArtifactStore, manifest: Manifest) -> None:
    """Replace a manifest behind the store's back."""
    store.blobs.put(f"{store.uri}/manifests/{manifest.key}.json", canonical_json(manifest.to_json()))


def test_everything_that_can_change_a_result_is_in_the_key() -> None:
    variants = [
        replace(SPEC, model_digest="e" * 64),
        replace(SPEC, target="torch"),
        replace(SPEC, precision="fp32"),
        replace(SPEC, versions=(("openvino", "2026.5.0"),)),
        replace(SPEC, machine=""),
        replace(SPEC, options=(("NUM_STREAMS", "2"),)),
        replace(SPEC, shape=Shape(length=32, batch=5)),
    ]
    keys = {SPEC.key, *(variant.key for variant in variants)}
    assert len(keys) == len(variants) + 1
    assert all(len(key) == 32 and set(key) <= set("0123456789abcdef") for key in keys)
    assert ArtifactSpec.from_json(json.loads(canonical_json(SPEC.to_json()))) == SPEC


def test_a_manifest_survives_json(stored: tuple[ArtifactStore, Manifest]) -> None:
    _, manifest = stored
    assert Manifest.from_json(json.loads(canonical_json(manifest.to_json()))) == manifest
    assert manifest.timing is not None
    assert 0 < manifest.timing.min_s <= manifest.timing.median_s <= manifest.timing.max_s
    assert manifest.parity is not None
    assert manifest.parity.passed


def test_load_gives_the_executable_and_compiles_nothing(
    stored: tuple[ArtifactStore, Manifest], tiny_model: Path
) -> None:
    store, manifest = stored
    model = read_model(tiny_model)
    before = compilations()
    executable = store.load(manifest.spec, load_target("torch"))
    logits = executable.run(batch_rows(random_rows(model, [7, 32]), SHAPE, model.pad_token_id))
    assert logits.shape == (4, 3)
    assert np.isfinite(logits).all()
    assert compilations() == before


def test_a_missing_artifact_is_named_with_the_command_that_builds_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.manifest(SPEC.key) is None
    for ask in (lambda: store.check(SPEC), lambda: store.load(SPEC, load_target("openvino"))):
        with pytest.raises(ArtifactError, match=rf"{SPEC.key}.*4x32.*does not exist.*lengthwise compile"):
            ask()


@pytest.mark.parametrize("fault", ["pending", "failed", "other versions"])
def test_no_passing_record_no_load(stored: tuple[ArtifactStore, Manifest], fault: str) -> None:
    store, manifest = stored
    record = manifest.parity
    assert record is not None
    unfit, reason = {
        "pending": (None, "parity is pending"),
        "failed": (replace(record, passed=False, reasons=("3 logits are NaN",)), "3 logits are NaN"),
        "other versions": (replace(record, versions={"torch": "1.0"}), "from other versions"),
    }[fault]
    rewrite(store, replace(manifest, parity=unfit))
    for ask in (lambda: store.load(manifest.spec, load_target("torch")), lambda: store.check(manifest.spec)):
        with pytest.raises(ArtifactError, match=reason):
            ask()
    assert any(reason in line for line in store.verify(manifest.key))


def test_an_artifact_of_other_versions_or_machines_is_not_loaded(stored: tuple[ArtifactStore, Manifest]) -> None:
    store, manifest = stored
    for spec, reason in (
        (replace(manifest.spec, versions=(("torch", "1.0"),)), "versions"),
        (replace(manifest.spec, machine="riscv64"), "riscv64"),
    ):
        assert manifest.parity is not None
        rewrite(store, replace(manifest, spec=spec, parity=replace(manifest.parity, versions=dict(spec.versions))))
        with pytest.raises(ArtifactError, match=reason):
            store.load(spec, load_target("torch"))


def test_a_manifest_under_anothers_key_is_not_believed(stored: tuple[ArtifactStore, Manifest]) -> None:
    store, manifest = stored
    wanted = replace(manifest.spec, shape=Shape(length=64, batch=4))
    store.blobs.put(f"{store.uri}/manifests/{wanted.key}.json", canonical_json(manifest.to_json()))
    with pytest.raises(ArtifactError, match=manifest.key):
        store.load(wanted, load_target("torch"))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"spec": {}}', b"\xff\xfe", b"null"])
def test_a_damaged_manifest_is_an_error_by_type(stored: tuple[ArtifactStore, Manifest], data: bytes) -> None:
    store, manifest = stored
    store.blobs.put(f"{store.uri}/manifests/{manifest.key}.json", data)
    with pytest.raises(ArtifactError, match="damaged"):
        store.load(manifest.spec, load_target("torch"))
    assert store.list() == []
    assert "damaged" in store.verify(manifest.key)[0]


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_in_the_store_is_refused_and_found_by_verify(stored: tuple[ArtifactStore, Manifest]) -> None:
    store, manifest = stored
    weights = manifest.files["model.safetensors"].sha256
    flip_a_byte(Path(store.uri) / "blobs" / weights)
    with pytest.raises(ArtifactError, match=rf"{weights}.*damaged"):
        store.load(manifest.spec, load_target("torch"))
    assert store.verify(manifest.key) == [f"model.safetensors is damaged: blob {weights} has other bytes"]


def test_a_damaged_artifact_can_be_removed_and_built_again(
    stored: tuple[ArtifactStore, Manifest], tiny_model: Path
) -> None:
    store, manifest = stored
    flip_a_byte(Path(store.uri) / "blobs" / manifest.files["model.safetensors"].sha256)
    store.remove(manifest.key)
    again = build(store, tiny_model, [SHAPE])[0]
    assert again.files == manifest.files
    assert store.verify(manifest.key) == []


def test_a_lost_blob_is_named_and_the_next_build_brings_it_back(
    stored: tuple[ArtifactStore, Manifest], tiny_model: Path
) -> None:
    store, manifest = stored
    (Path(store.uri) / "blobs" / manifest.files["config.json"].sha256).unlink()
    with pytest.raises(ArtifactError, match=r"has lost config\.json"):
        store.check(manifest.spec)
    with pytest.raises(ArtifactError, match="is missing"):
        store.load(manifest.spec, load_target("torch"))
    build(store, tiny_model, [SHAPE])
    assert store.verify(manifest.key) == []
    assert store.load(manifest.spec, load_target("torch")).shape == SHAPE


def test_shapes_of_one_model_share_its_weights(tmp_path: Path, tiny_model: Path) -> None:
    store = open_store(tmp_path)
    one, other = build(store, tiny_model, [Shape(16, 8), SHAPE])
    assert one.key != other.key
    assert one.files["model.safetensors"] == other.files["model.safetensors"]
    assert len(list((tmp_path / "artifacts" / "blobs").iterdir())) == len(one.files)


def test_the_second_publisher_gets_the_first_ones_manifest(
    stored: tuple[ArtifactStore, Manifest], tmp_path: Path
) -> None:
    store, manifest = stored
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"something else")
    found = store.publish(manifest.spec, other, compile_seconds=9, timing=None, parity=manifest.parity)
    assert found == manifest == store.manifest(manifest.key)


def test_gc_keeps_what_is_kept_and_gives_builders_their_grace(tmp_path: Path, tiny_model: Path) -> None:
    store = open_store(tmp_path)
    keep, drop = build(store, tiny_model, [Shape(16, 8), SHAPE])
    orphan = store.blobs.put_new(f"{store.uri}/blobs/{'a' * 64}", b"from a builder that died, or is still at work")
    assert orphan
    first = gc(store, {keep.key}, now_s=1000.0, grace_s=60)
    assert (first.artifacts, first.blobs, first.waiting) == ((drop.key,), (), ("a" * 64,))
    assert gc(store, {keep.key}, now_s=1059.0, grace_s=60).blobs == ()
    assert gc(store, {keep.key}, now_s=1060.0, grace_s=60).blobs == ("a" * 64,)
    assert store.verify(keep.key) == []
    assert [manifest.key for manifest in store.list()] == [keep.key]
    assert gc(store, (), now_s=2000.0, grace_s=0).blobs == tuple(sorted(f.sha256 for f in keep.files.values()))


def test_a_blob_that_is_used_again_loses_its_mark(tmp_path: Path, tiny_model: Path) -> None:
    store = open_store(tmp_path)
    build(store, tiny_model, [SHAPE])
    gc(store, (), now_s=0.0, grace_s=60)
    manifest = build(store, tiny_model, [SHAPE])[0]
    assert gc(store, {manifest.key}, now_s=100.0, grace_s=60).blobs == ()
    assert store.verify(manifest.key) == []


def test_the_store_works_on_s3_and_another_process_loads_the_same_bytes(
    s3: object, tmp_path: Path, tiny_model: Path
) -> None:
    from demo.servers.seaweed import S3Endpoint
    from pipeline.objects import Objects

    assert isinstance(s3, S3Endpoint)
    uri = f"s3://{s3.bucket}/artifacts"
    store = ArtifactStore(Objects(), uri, tmp_path / "cache")
    manifest = build(store, tiny_model, [SHAPE], target="openvino")[0]
    assert store.verify(manifest.key) == []
    model = read_model(tiny_model)
    rows = random_rows(model, [7, 32, 3])
    here = store.load(manifest.spec, load_target("openvino")).run(batch_rows(rows, SHAPE, model.pad_token_id))
    program = (
        "import sys; from pathlib import Path\n"
        "from artifact_tools import *; from compile.artifacts import artifact_spec\n"
        "from compile.batches import batch_rows; from compile.compilations import compilations\n"
        "model = read_model(Path(sys.argv[1])); target = load_target('openvino'); shape = Shape(length=32, batch=4)\n"
        "store = ArtifactStore(Objects(), sys.argv[2], Path(sys.argv[3]))\n"
        "executable = store.load(artifact_spec(target, model, shape, 'fp32'), target)\n"
        "logits = executable.run(batch_rows(random_rows(model, [7, 32, 3]), shape, model.pad_token_id))\n"
        "print(logits.tobytes().hex(), compilations())\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", program, str(tiny_model), uri, str(tmp_path / "other-cache")],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert out == [here.tobytes().hex(), "0"]


def test_the_spec_of_this_machine_is_the_built_one(stored: tuple[ArtifactStore, Manifest], tiny_model: Path) -> None:
    _, manifest = stored
    assert artifact_spec(load_target("torch"), read_model(tiny_model), SHAPE, "fp32") == manifest.spec


def test_another_model_has_another_key(tmp_path: Path, tiny_model: Path) -> None:
    other = make_model(tmp_path / "other", seed=1)
    target = load_target("torch")
    keys = {artifact_spec(target, read_model(path), SHAPE, "fp32").key for path in (tiny_model, other)}
    assert len(keys) == 2
