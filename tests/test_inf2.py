"""bench/inf2.sh, as a person on an inf2 would run it, at a tiny size and over the double: the procedure, no figures."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from neuron_tools import double_environment

from bench.inf2 import PUBLISHED, settings
from compile.model import read_model
from pipeline.job import load_job

ROOT = Path(__file__).parents[1]


def measurement(folder: Path, models: str, **double: str) -> tuple[int, dict[str, Any]]:
    """The script's exit code and what it wrote."""
    env = {
        **os.environ,
        **double_environment(**double),
        "PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
        "INF2_OUT": str(folder),
        "INF2_MODELS": models,
        "INF2_ROWS": "40",
        "INF2_LENGTH": "16",
        "INF2_REVIEWS": "0",
        "INF2_TINY": "1",
    }
    script = str(ROOT / "bench/inf2.sh")
    done = subprocess.run([script], env=env, capture_output=True, text=True, check=False, timeout=900)
    assert done.stdout == (folder / "inf2.log").read_text()
    return done.returncode, json.loads((folder / "inf2.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_measurement_is_one_file_with_what_failed(tmp_path: Path) -> None:
    """The compiler fails on distilbert's shape alone; bert-base is measured all the same."""
    code, found = measurement(tmp_path, "distilbert-base,bert-base", compile="fail@16x16")
    failed, measured = found["measured"]["distilbert-base"]["error"], found["measured"]["bert-base"]
    assert (code, measured["error"]) == (1, None)
    assert "ended with 4" in failed
    assert "[NCC_EVRF001] Operation erfinv is not supported" in failed
    assert found["testdouble"] is True
    assert (measured["shape"], measured["rows"]) == ("8x16", 40)
    assert measured["published_inferences_per_second"] is None  # AWS's figure is of another length
    assert measured["parity"]["passed"]
    assert measured["versions"]["neuronx-cc"].endswith("+testdouble")
    assert 0 < measured["infer_rows_per_second"] <= measured["executing_rows_per_second"]
    assert [each["name"] for each in found["doctor"]["targets"] if each["name"] == "neuron"] == ["neuron"]
    assert not (tmp_path / "work/bert-base").exists()


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_its_models_are_classifiers_of_the_published_sizes(name: str, tmp_path: Path) -> None:
    from bench.inf2 import make_model

    make_model(tmp_path, PUBLISHED[name], tiny=True)
    assert read_model(tmp_path).labels == ("LABEL_0", "LABEL_1")
    from transformers import AutoConfig

    config = AutoConfig.for_model(PUBLISHED[name].model_type, **PUBLISHED[name].sizes)
    layers, width = {"distilbert-base": (6, 768), "bert-large": (24, 1024)}.get(name, (12, 768))
    assert (config.num_hidden_layers, config.hidden_size) == (layers, width)


def test_settings_that_are_wrong_are_named() -> None:
    assert settings({}).models == tuple(PUBLISHED)
    assert settings({"INF2_ROWS": "7", "INF2_MODELS": "bert-large"}).rows == 7
    with pytest.raises(SystemExit, match="INF2_MODELS: gpt2 is unknown; choose from: distilbert-base"):
        settings({"INF2_MODELS": "bert-base,gpt2"})
    with pytest.raises(SystemExit, match="are numbers"):
        settings({"INF2_ROWS": "many"})


def test_the_runbooks_job_is_valid_and_its_figures_are_those_of_the_script(tmp_path: Path) -> None:
    text = (ROOT / "docs/inf2.md").read_text()
    (job,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "job.yaml").write_text(job)
    assert load_job(tmp_path / "job.yaml").target == "neuron"
    rows = re.findall(r"^\| ([a-z-]+) \| (\d+) \| ([\d,]+) \|", text, re.MULTILINE)
    shown = {name: (int(batch), float(rate.replace(",", ""))) for name, batch, rate in rows}
    assert shown == {name: (each.batch, each.inferences_per_second) for name, each in PUBLISHED.items()}
