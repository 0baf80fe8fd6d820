"""A job's columns are declared once; a change is refused before any work, until it is accepted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compile.model import read_model
from jobs import DS, make_home, put_rows, rows
from pipeline.declared_schema import Declared, check_schema, claim_schema, declared_by, differences, recorded
from pipeline.errors import JobError
from pipeline.objects import Objects

OLD: Declared = {"predictions": {"a": "string", "b": "int32", "score": "float"}}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({"a": "string", "b": "int32", "score": "float"}, []),
        ({"a": "string", "score": "float"}, ["predictions loses column b (int32)"]),
        ({**OLD["predictions"], "c": "date"}, ["predictions gains column c (date)"]),
        ({"a": "string", "b": "int64", "score": "float"}, ["predictions.b changes from int32 to int64"]),
        (
            {"b": "int32", "a": "string", "score": "float"},
            ["the columns of predictions change their order to b, a, score"],
        ),
        (
            {"c": "string", "b": "string", "score": "float"},
            [
                "predictions loses column a (string)",
                "predictions gains column c (string)",
                "predictions.b changes from int32 to string",
            ],
        ),
    ],
)
def test_every_difference_is_said(now: dict[str, str], expected: list[str]) -> None:
    assert differences(OLD, {"predictions": now}) == expected
    assert differences({}, {"predictions": now}) == [], "nothing is published yet"


def test_the_first_night_declares_and_the_others_must_fit(tmp_path: Path, tiny_model: Path) -> None:
    model = read_model(tiny_model)
    first = make_home(tmp_path, tiny_model, str(tmp_path)).context()
    check_schema(first, model)
    claim_schema(first, model)
    assert recorded(first) == declared_by(first, model)
    claim_schema(first, model)
    other = make_home(
        tmp_path, tiny_model, str(tmp_path), input={"keep": {"group": "string", "id": "string"}}
    ).context()
    for checked in (check_schema, claim_schema):
        with pytest.raises(JobError, match=r"predictions gains column id \(string\).*lengthwise schema JOB --accept"):
            checked(other, model)
    assert recorded(first) == declared_by(first, model)


def test_a_change_is_refused_before_any_work_until_it_is_accepted(tmp_path: Path, tiny_model: Path) -> None:
    put_rows(Objects().put, str(tmp_path), rows(10))
    make_home(tmp_path, tiny_model, str(tmp_path), shapes=["8x128"]).run()
    home = make_home(
        tmp_path, tiny_model, str(tmp_path), shapes=["8x128"], input={"keep": {"group": "string", "text": "string"}}
    )
    published = Path(f"{tmp_path}/out/predictions/ds={DS}/part-00000.parquet").read_bytes()
    refused = home.command("run", str(home.file), "--ds", DS, "--fresh")
    assert refused.returncode == 2
    assert "predictions gains column text (string)" in refused.stderr
    assert "snapshot:" not in refused.stderr
    assert not Path(f"{tmp_path}/out/_lengthwise/generations").exists(), "not even the fresh start"
    shown = json.loads(home.command("schema", str(home.file), "--json").stdout)
    assert shown["changes"] == ["predictions gains column text (string)"]
    assert shown["tables"]["predictions"]["text"] == "string"
    assert home.command("step", "snapshot", "--job", str(home.file), "--ds", DS).returncode == 2
    accepted = home.command("schema", str(home.file), "--accept")
    assert accepted.returncode == 0, accepted.stderr
    home.run()
    assert Path(f"{tmp_path}/out/predictions/ds={DS}/part-00000.parquet").read_bytes() != published
    swept = home.command("sweep", str(home.file), "--json")
    assert json.loads(swept.stdout) == {"partitions": 1, "removed": 0}, swept.stderr
