"""A process that loads a model does not pay for packages that only other uses of transformers need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LOAD = """
import json, sys
from pathlib import Path
from compile.targets.encoders import load_classifier
load_classifier(Path(sys.argv[1]))
loaded = sorted({"sklearn", "scipy"} & set(sys.modules))
import scipy, sklearn.metrics
print(json.dumps([loaded, sklearn.metrics.roc_curve.__name__]))
"""
KEPT = """
import sys, scipy
from compile.transformers_package import transformers_package
transformers_package()
assert sys.modules["scipy"] is scipy and "sklearn" not in sys.modules
"""


def test_loading_a_classifier_imports_neither_and_both_can_be_imported_later(tiny_model: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LOAD, str(tiny_model)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], "roc_curve"]


def test_what_was_imported_before_stays() -> None:
    subprocess.run([sys.executable, "-c", KEPT], check=True)
