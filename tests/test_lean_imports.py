"""A process that loads a model does not pay for packages that only other uses of transformers need."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from jobs import DS, make_home, put_rows, rows
from pipeline.objects import Objects

LOAD = """
import json, sys
from pathlib import Path
from compile.targets.encoders import load_classifier
load_classifier(Path(sys.argv[1]))
loaded = sorted({"sklearn", "scipy"} & set(sys.modules))
import scipy, sklearn.metrics
print(json.dumps([loaded, sklearn.metrics.roc_curve.__name__]))
"""
LATER = """
import sys
from compile.lean_imports import arrow_without_pandas
arrow_without_pandas()
assert "pandas" not in sys.modules
import pyarrow
assert pyarrow.table({"a": ["x"]}).to_pandas()["a"].tolist() == ["x"]
"""
KEPT = """
import sys, scipy
from compile.lean_imports import transformers_package
transformers_package()
assert sys.modules["scipy"] is scipy and "sklearn" not in sys.modules
"""


def test_loading_a_classifier_imports_neither_and_both_can_be_imported_later(tiny_model: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LOAD, str(tiny_model)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], "roc_curve"]


def test_help_and_validation_import_neither_numpy_nor_pyarrow(tmp_path: Path, tiny_model: Path) -> None:
    """A worker says how many threads they may have before it imports them, too."""
    home = make_home(tmp_path, tiny_model, str(tmp_path))
    for command in (["--help"], ["step", "infer", "--help"], ["validate", str(home.file)]):
        done = home.command(*command, PYTHONPROFILEIMPORTTIME="1")
        assert done.returncode == 0
        assert re.search(r"\| +pipeline\.cli\n", done.stderr)
        assert not re.search(r"\| +(numpy|pyarrow)\n", done.stderr), command


def test_a_step_takes_no_pandas_along(tmp_path: Path, tiny_model: Path) -> None:
    """None of a run's processes; the attempt itself is told, too, so their modules are looked for."""
    put_rows(Objects().put, str(tmp_path), rows(10))
    home = make_home(tmp_path, tiny_model, str(tmp_path))
    home.run()
    done = home.command("run", str(home.file), "--ds", DS, "--fresh", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    assert len(re.findall(r"\| +pyarrow\n", done.stderr)) > 3
    assert not re.search(r"\| +(pandas|sklearn|scipy)\.", done.stderr)


def test_pandas_can_be_had_afterwards() -> None:
    subprocess.run([sys.executable, "-c", LATER], check=True)


def test_what_was_imported_before_stays() -> None:
    subprocess.run([sys.executable, "-c", KEPT], check=True)
