"""What README says of the repository is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from pipeline.job import Input, Job
from pipeline.job_generate import Generate
from pipeline.job_neuron import Neuron
from pipeline.job_output import Catalog, Output
from pipeline.rejects import REASONS
from pipeline.version_matrix import MATRIX

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_list_of_modules_is_current() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "scripts/readme_modules.py"), "--check"], check=False)
    assert done.returncode == 0, "run: python scripts/readme_modules.py"


def test_every_job_field_is_documented() -> None:
    documented = set(re.findall(r"^\| `([a-z0-9_.]+)`", (ROOT / "docs/jobs.md").read_text(), re.MULTILINE))
    fields = {
        name
        for name in Job.model_fields
        if name not in ("model", "input", "output", "reject_budget", "parity", "generate", "neuron")
    }
    sections = {"input": Input, "output": Output, "output.catalog": Catalog, "generate": Generate, "neuron": Neuron}
    fields |= {f"{section}.{name}" for section, model in sections.items() for name in model.model_fields}
    fields.remove("output.catalog")
    assert fields <= documented
    assert set(REASONS) <= documented


def test_every_linked_file_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_version_matrix_is_the_doctors() -> None:
    rows = [f"| {row.device} | {row.task} | {row.stack} | {row.tested} | {row.future} |" for row in MATRIX]
    assert [row for row in rows if row not in README.splitlines()] == []
