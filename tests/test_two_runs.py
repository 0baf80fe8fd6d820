"""Two runs of one partition at the same time are harmless: both end well, and readers see one whole version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs import DS, JobHome, make_home, published, put_rows, rows
from pipeline.generation import current_generation
from pipeline.manifest import committed
from pipeline.objects import Objects


@pytest.fixture
def home(tmp_path: Path, tiny_model: Path) -> JobHome:
    home = make_home(tmp_path, tiny_model, str(tmp_path), shapes=["8x128"], workers=1)
    put_rows(Objects().put, str(tmp_path), rows(120))
    return home


@pytest.mark.parametrize("options", [(), ("--fresh",)])
def test_two_runs_at_once_both_end_well(home: JobHome, options: tuple[str, ...]) -> None:
    command = ("run", str(home.file), "--ds", DS, "--json", *options)
    if options:
        home.run()
    before = published(Objects(), str(home.folder))
    processes = [home.start(*command) for _ in range(2)]
    reports = []
    for process in processes:
        output, errors = process.communicate(timeout=500)
        assert process.returncode == 0, errors
        reports.append(json.loads(output))
    assert reports[0]["fingerprint"] == reports[1]["fingerprint"]
    after = published(Objects(), str(home.folder))
    assert len(after) == 2
    assert not before or after == before, "the same bytes"
    context = home.context()
    manifest = committed(context)
    assert manifest is not None
    assert (manifest.predicted, manifest.generation) == (120, current_generation(context))
    assert current_generation(context) == (2 if options else 0)
    for folder in (home.folder / f"out/_lengthwise/runs/ds={DS}").iterdir():
        left = {path.parent.name for path in folder.rglob("*") if path.is_file()}
        assert left == {folder.name, "events"}, "no shard, no staged part"
