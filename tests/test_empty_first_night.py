"""A night without rows decides nothing for later ones: the shape plan is frozen by the first night that has rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs import DS, make_home, put_rows, rows
from pipeline import flow
from pipeline.objects import Objects

EMPTY = "2026-11-23"


def test_the_first_night_with_rows_freezes_the_shape_plan(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_home(
        tmp_path,
        tiny_model,
        str(tmp_path),
        shapes="auto",
        max_graphs=2,
        workers=1,
        input={"when_missing": "empty", "keep": {}},
    )
    for name in ("LENGTHWISE_CACHE", "LENGTHWISE_LOCK_DIR"):
        monkeypatch.setenv(name, home.environment[name])
    plans = tmp_path / "out/_lengthwise/shape_plans"
    assert flow.run(home.context(EMPTY), home.file)["rows"] == 0
    assert not list(plans.glob("*"))
    put_rows(Objects().put, str(tmp_path), rows(20))
    report = flow.run(home.context(), home.file)
    assert (report["ds"], report["predicted"]) == (DS, 20)
    assert len(list(plans.glob("*.json"))) == 1
    assert len(report["shapes"]) <= 2
