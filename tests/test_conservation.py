"""The commit's own check can fail: a lost row or a wrong summary is found, and nothing is published."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs import DS, JobHome, make_home, published, put_rows, rows
from pipeline import steps
from pipeline.context import Context
from pipeline.errors import ConservationError
from pipeline.layout import part_summary, token_object
from pipeline.objects import Objects
from pipeline.run_plan import load_run, plan_object


@pytest.fixture
def staged(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[JobHome, Context, str]:
    """A run up to and with its infer step: 40 rows in one split, one of them rejected."""
    monkeypatch.setenv("LENGTHWISE_LOCK_DIR", str(tmp_path / "locks"))
    put_rows(Objects().put, str(tmp_path), rows(39))
    Objects().put(f"{tmp_path}/in/ds={DS}/z.jsonl", b"no json\n")
    home = make_home(tmp_path, tiny_model, str(tmp_path), shapes=["2x128"], reject_budget={"share": 0.5})
    context = home.context()
    taken = steps.snapshot(context)
    steps.tokenize(context, taken["snapshot"])
    run = steps.plan(context, taken["snapshot"])["run"]
    steps.compile_artifacts(context, run)
    steps.infer(context, run)
    return home, context, run


def edit(uri: str, change: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads(Objects().get(uri))
    change(data)
    Objects().put(uri, json.dumps(data).encode())


def refused(context: Context, run: str, match: str) -> None:
    with pytest.raises(ConservationError, match=match):
        steps.commit(context, run)
    assert published(Objects(), str(context.job.output.uri).removesuffix("/out")) == {}


@pytest.mark.parametrize(
    "change", [{"predicted": 38}, {"predicted": 40}, {"rejected": 0}, {"rows": 39, "rejected": 0}, {"rows": 41}]
)
def test_a_summary_that_does_not_add_up(staged: tuple[JobHome, Context, str], change: dict[str, int]) -> None:
    _, context, run = staged
    steps.publish(context, run)
    edit(part_summary(run, 0), lambda data: data.update(change))
    refused(context, run, r"split 0: 40 rows were read, .* nothing was published")
    edit(part_summary(run, 0), lambda data: data.update(rows=40, predicted=39, rejected=1))
    assert steps.commit(context, run)["predicted"] == 39


def test_a_row_that_no_shard_has(staged: tuple[JobHome, Context, str]) -> None:
    _, context, run = staged

    def lose_one(data: dict[str, Any]) -> None:
        data["shards"][0][1][0][1] += 1  # the first range starts a row later

    edit(plan_object(run), lose_one)
    Objects().delete(f"{run}/shards/shard-00000.arrow")
    steps.infer(context, run)
    with pytest.raises(ConservationError, match="38 of 39 rows have a result"):
        steps.publish(context, run)


def test_a_row_that_the_tokens_lost(staged: tuple[JobHome, Context, str]) -> None:
    _, context, run = staged
    planned = load_run(Objects(), run)
    steps.publish(context, run)
    edit(token_object(planned.tokens_uri, 0, "meta.json"), lambda data: data.update(rows=39))
    refused(context, run, "split 0: 39 rows were read, 39 predicted and 1 rejected")


def test_the_exit_code_is_7(staged: tuple[JobHome, Context, str]) -> None:
    home, context, run = staged
    steps.publish(context, run)
    edit(part_summary(run, 0), lambda data: data.update(predicted=38))
    done = home.command("step", "commit", "--job", str(home.file), "--ds", DS, "--run", run)
    assert done.returncode == 7
    assert "Please report this" in done.stderr
