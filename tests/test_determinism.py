"""Same input, same bytes: in any order of shards, alone or together, and with another parameter's runs in between."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from jobs import DS, jsonl, make_home, published, put_rows, rows
from pipeline import steps
from pipeline.context import Context
from pipeline.objects import Objects


def test_each_shard_alone_and_in_any_order_gives_the_same_bytes(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LENGTHWISE_LOCK_DIR", str(tmp_path / "locks"))
    Objects().put(f"{tmp_path}/in/ds={DS}/x.jsonl", jsonl(rows(120)))
    context = make_home(tmp_path, tiny_model, str(tmp_path)).context()
    objects = context.objects
    taken = steps.snapshot(context)
    steps.tokenize(context, taken["snapshot"])
    run = steps.plan(context, taken["snapshot"])["run"]
    steps.compile_artifacts(context, run)
    steps.infer(context, run)
    first = {uri: objects.get(uri) for uri in objects.list(f"{run}/shards/")}
    assert len(first) >= 3
    for seed in range(3):
        for uri in first:
            objects.delete(uri)
        order = random.Random(seed).sample(sorted(first), len(first))
        for left in order:  # all others have their result, so a worker does this one alone
            for uri in order:
                if uri != left:
                    objects.put_new(uri, first[uri])
            objects.delete(left)
            index, of = seed, seed + 1 + len(order) % 2
            for worker in range(of):
                steps.infer(context, run, (index + worker) % of, of)
            assert objects.get(left) == first[left]


def test_half_a_run_of_one_parameter_never_mixes_with_another(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A is left half done, B is published, then A again, and B again: right bytes each time."""
    monkeypatch.setenv("LENGTHWISE_LOCK_DIR", str(tmp_path / "locks"))
    put_rows(Objects().put, str(tmp_path), rows(60))

    def planned(max_length: int, out: str) -> tuple[Context, str]:
        home = make_home(
            tmp_path / out, tiny_model, str(tmp_path), max_length=max_length, shapes=["8x32", "2x128"],
            output={"uri": f"{tmp_path}/{out}/out"},
        )  # fmt: skip
        context = home.context()
        taken = steps.snapshot(context)
        steps.tokenize(context, taken["snapshot"])
        run = steps.plan(context, taken["snapshot"])["run"]
        steps.compile_artifacts(context, run)
        return context, run

    def finished(max_length: int, out: str) -> dict[str, bytes]:
        context, run = planned(max_length, out)
        steps.infer(context, run)
        steps.publish(context, run)
        steps.commit(context, run)
        steps.report(context, run)
        root = f"{tmp_path}/{out}"
        return {uri.removeprefix(root): data for uri, data in published(Objects(), root).items()}

    finished(128, "warm")  # the artifacts and their costs exist from here on, so all plans are made alike
    expected = {128: finished(128, "a"), 127: finished(127, "b")}
    assert expected[128] != expected[127]
    context, run = planned(128, "mixed")
    steps.infer(context, run)
    for uri in Objects().list(f"{run}/shards/")[::2]:
        Objects().delete(uri)
    for max_length in (127, 128, 127, 128):
        assert finished(max_length, "mixed") == expected[max_length]
