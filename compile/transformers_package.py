"""transformers, imported without the packages that it takes along where they happen to be installed.

NNCF brings scikit-learn and SciPy into the environment, and transformers then imports both for assisted generation and
for losses of object detection. That is a third of the CPU seconds in which a process becomes ready to load a model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NOT_NEEDED = ("sklearn", "scipy")


def transformers_package() -> Any:
    """The module. Call it before any other import of transformers or optimum: it looks once at what is installed."""
    with _hidden(NOT_NEEDED):
        import transformers
    return transformers


@contextmanager
def _hidden(packages: tuple[str, ...]) -> Iterator[None]:
    """What asks whether these packages are installed is told no, but for those that are imported already."""
    hidden: dict[str, Any] = {name: None for name in packages if name not in sys.modules}
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
