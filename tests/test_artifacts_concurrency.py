"""Artifacts under many processes and sudden deaths: racing builders, kill -9 anywhere, a cache that is too small."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifact_tools import build, open_store, random_rows

from compile.artifacts import ArtifactStore, Manifest, artifact_spec
from compile.batches import batch_rows
from compile.build import build_artifact
from compile.cache import DiskCache
from compile.errors import ArtifactError
from compile.model import file_digest, read_model
from compile.parity import TOLERANCES
from compile.reference import Reference
from compile.shapes import Shape
from compile.targets import load_target
from compile.targets.encoders import load_encoder
from pipeline.objects import Objects

SHAPE = Shape(length=32, batch=4)
FORK = multiprocessing.get_context("fork")
"""Forked children need not import torch again; the torch target runs on the calling thread, so that a fork is safe."""
DEADLINE_S = 120


class DyingObjects(Objects):
    """A real store whose process is killed with -9 at one of its operations, before or after it took effect."""

    def __init__(self, operation: int, *, after: bool) -> None:
        super().__init__()
        self.left, self.after = operation, after

    def _die(self, call: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = call()
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def put_new(self, uri: str, data: bytes) -> bool:
        return bool(self._die(lambda: Objects.put_new(self, uri, data)))

    def upload_new(self, path: Path, uri: str) -> bool:
        return bool(self._die(lambda: Objects.upload_new(self, path, uri)))

    def exists(self, uri: str) -> bool:
        return bool(self._die(lambda: Objects.exists(self, uri)))


def build_one(folder: Path, model_dir: Path, objects: Objects | None = None) -> Manifest:
    store = ArtifactStore(objects or Objects(), str(folder / "artifacts"), folder / "cache")
    target, model = load_target("torch"), read_model(model_dir)
    work = folder / f"work-{os.getpid()}"
    work.mkdir(parents=True, exist_ok=True)
    spec = artifact_spec(target, model, SHAPE, "fp32")
    return build_artifact(
        store, target, model, model_dir, spec, random_rows(model, [3, 8, 20]), TOLERANCES["fp32"], work
    )


def is_absent_or_right(folder: Path, model_dir: Path) -> bool:
    """Whether the artifact exists. Fails the test when there is one that loads and is broken, or does not load."""
    store, target, model = open_store(folder, f"cache-{time.time_ns()}"), load_target("torch"), read_model(model_dir)
    spec = artifact_spec(target, model, SHAPE, "fp32")
    if not store.exists(spec.key):
        with pytest.raises(ArtifactError, match="does not exist"):
            store.load(spec, target)
        return False
    row = random_rows(model, [32])
    logits = store.load(spec, target).run(batch_rows(row, SHAPE, model.pad_token_id))
    assert np.abs(logits[0] - Reference(model_dir, model.pad_token_id).logits(row[0])).max() < 1e-5
    assert store.verify(spec.key) == []
    return True


def join(process: Any) -> int:
    process.join(DEADLINE_S)
    assert process.exitcode is not None, f"a child did not end within {DEADLINE_S} s"
    return int(process.exitcode)


@pytest.fixture(autouse=True)
def torch_is_loaded(tiny_model: Path) -> None:
    """Children inherit what the parent has imported."""
    load_encoder(tiny_model)


def test_kill_9_at_every_operation_of_a_build_leaves_nothing_broken(tmp_path: Path, tiny_model: Path) -> None:
    outcomes = []
    for after in (False, True):
        for operation in range(1, 40):
            folder = tmp_path / f"{operation}-{after}"
            objects = DyingObjects(operation, after=after)
            child = FORK.Process(target=build_one, args=(folder, tiny_model, objects))
            child.start()
            code = join(child)
            outcomes.append((code, is_absent_or_right(folder, tiny_model)))
            if code == 0:
                break  # this many operations are more than a build has
            assert code == -signal.SIGKILL
            assert build_one(folder, tiny_model).key
            assert is_absent_or_right(folder, tiny_model)
        else:
            pytest.fail("a build has more store operations than this test kills at")
    assert {(-signal.SIGKILL, False), (-signal.SIGKILL, True), (0, True)} == set(outcomes)


def test_kill_9_at_30_random_moments_of_a_build_leaves_nothing_broken(tmp_path: Path, tiny_model: Path) -> None:
    started = time.perf_counter()
    child = FORK.Process(target=build_one, args=(tmp_path / "whole", tiny_model))
    child.start()
    assert join(child) == 0
    whole_s = time.perf_counter() - started
    rng = random.Random(0)
    folder = tmp_path / "killed"  # one store for all, so that each build starts from what the last death left
    for _ in range(30):
        child = FORK.Process(target=build_one, args=(folder, tiny_model))
        child.start()
        child.join(rng.uniform(0, whole_s))
        child.kill()
        join(child)
        is_absent_or_right(folder, tiny_model)
    build_one(folder, tiny_model)
    assert is_absent_or_right(folder, tiny_model)


def build_at_once(barrier: Any, folder: Path, model_dir: Path, results: Any) -> None:
    barrier.wait(DEADLINE_S)
    results.put(build_one(folder, model_dir).to_json()["timing"])


def test_racing_builders_end_with_one_artifact(tmp_path: Path, tiny_model: Path) -> None:
    barrier, results = FORK.Barrier(4), FORK.SimpleQueue()
    children = [FORK.Process(target=build_at_once, args=(barrier, tmp_path, tiny_model, results)) for _ in range(4)]
    for child in children:
        child.start()
    assert [join(child) for child in children] == [0] * 4
    timings = [results.get() for _ in children]
    assert all(timing == timings[0] for timing in timings), "every builder must get the one that was published"
    assert len(open_store(tmp_path).artifact_keys()) == 1
    assert is_absent_or_right(tmp_path, tiny_model)


def load_again_and_again(barrier: Any, folder: Path, model_dir: Path, cache_bytes: int, expected: bytes) -> None:
    target, model = load_target("torch"), read_model(model_dir)
    store = open_store(folder, "small", cache_bytes)
    row = random_rows(model, [16])
    barrier.wait(DEADLINE_S)
    for _ in range(10):
        for shape in (Shape(16, 2), SHAPE):
            executable = store.load(artifact_spec(target, model, shape, "fp32"), target)
            logits = executable.run(batch_rows(row, shape, model.pad_token_id))
            assert np.abs(logits[0] - np.frombuffer(expected, np.float32)).max() < 1e-5


@pytest.mark.parametrize("cache_bytes", [0, 10_000, 1 << 30])
def test_loading_is_safe_while_other_processes_evict(tmp_path: Path, tiny_model: Path, cache_bytes: int) -> None:
    build(open_store(tmp_path), tiny_model, [Shape(16, 2), SHAPE])
    model = read_model(tiny_model)
    expected = Reference(tiny_model, model.pad_token_id).logits(random_rows(model, [16])[0]).tobytes()
    barrier = FORK.Barrier(4)
    children = [
        FORK.Process(target=load_again_and_again, args=(barrier, tmp_path, tiny_model, cache_bytes, expected))
        for _ in range(4)
    ]
    for child in children:
        child.start()
    assert [join(child) for child in children] == [0] * 4
    kept = sum(path.stat().st_size for path in (tmp_path / "small" / "blobs").iterdir())
    assert kept <= cache_bytes
    assert list((tmp_path / "small" / "loads").iterdir()) == []


@pytest.fixture
def cache(tmp_path: Path) -> tuple[DiskCache, dict[str, tuple[str, int]]]:
    """A cache of 250 bytes over a store with three blobs of 100 bytes."""
    files = {}
    for name in ("a", "b", "c"):
        source = tmp_path / name
        source.write_bytes(name.encode() * 100)
        files[name] = (file_digest(source), 100)
        Objects().upload_new(source, str(tmp_path / "store" / files[name][0]))
    return DiskCache(Objects(), str(tmp_path / "store"), tmp_path / "cache", 250), files


def kept_names(tmp_path: Path, files: dict[str, tuple[str, int]]) -> set[str]:
    digests = {path.name for path in (tmp_path / "cache" / "blobs").iterdir()}
    return {name for name, (sha256, _) in files.items() if sha256 in digests}


def use(cache: DiskCache, files: dict[str, tuple[str, int]], *names: str) -> None:
    with cache.directory({name: files[name] for name in names}) as directory:
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == {
            name: name.encode() * 100 for name in names
        }


def test_the_least_recently_used_blob_is_evicted(
    cache: tuple[DiskCache, dict[str, tuple[str, int]]], tmp_path: Path
) -> None:
    disk, files = cache
    for name in ("a", "b", "a", "c"):
        use(disk, files, name)
    assert kept_names(tmp_path, files) == {"a", "c"}


def test_an_artifact_larger_than_the_cache_still_loads(
    cache: tuple[DiskCache, dict[str, tuple[str, int]]], tmp_path: Path
) -> None:
    disk, files = cache
    use(disk, files, "a", "b", "c")
    assert len(kept_names(tmp_path, files)) == 2


def test_what_is_cached_is_not_fetched_again(
    cache: tuple[DiskCache, dict[str, tuple[str, int]]], tmp_path: Path
) -> None:
    disk, files = cache
    use(disk, files, "a")
    (tmp_path / "store" / files["a"][0]).unlink()
    use(disk, files, "a")
    empty = DiskCache(Objects(), str(tmp_path / "store"), tmp_path / "empty", 250)
    with pytest.raises(ArtifactError, match="is missing"):
        use(empty, files, "a")


def test_a_damaged_copy_on_the_disk_is_fetched_again(
    cache: tuple[DiskCache, dict[str, tuple[str, int]]], tmp_path: Path
) -> None:
    disk, files = cache
    use(disk, files, "a")
    copy = tmp_path / "cache" / "blobs" / files["a"][0]
    for damage in (b"x" * 100, b"", b"a" * 99):
        copy.write_bytes(damage)
        use(disk, files, "a")
        assert copy.read_bytes() == b"a" * 100


def test_what_a_killed_loader_left_is_removed_by_the_next(
    cache: tuple[DiskCache, dict[str, tuple[str, int]]], tmp_path: Path
) -> None:
    disk, files = cache

    def load_and_die() -> None:
        with disk.directory({"a": files["a"]}):
            os.kill(os.getpid(), signal.SIGKILL)

    child = FORK.Process(target=load_and_die)
    child.start()
    assert join(child) == -signal.SIGKILL
    assert list((tmp_path / "cache" / "loads").iterdir()) != []
    with disk.directory({"b": files["b"]}) as held:
        use(disk, files, "c")
        assert held.is_dir(), "a live loader's directory must stay"
    assert list((tmp_path / "cache" / "loads").iterdir()) == []
