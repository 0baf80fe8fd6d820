"""Packages imported without others that they take along where these happen to be installed, and that nothing here uses.

A process of a step lives for seconds, so what it imports is a good part of what it costs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from typing import Any


@functools.cache  # it is asked for each text's sampling rules
def transformers_package() -> Any:
    """transformers. Call it before any other import of transformers or optimum: it looks once at what is installed.

    NNCF brings scikit-learn and SciPy into the environment, and transformers imports both, for assisted generation and
    for losses of object detection: a third of the CPU seconds until a model can be loaded.
    """
    with _hidden("sklearn", "scipy"):
        import transformers
    return transformers


def arrow_without_pandas() -> None:
    """Let PyArrow make arrays of lists without pandas, which it would import first; its `to_pandas` asks again."""
    finder = _Missing()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow

        pyarrow.array([None])
    finally:
        sys.meta_path.remove(finder)


class _Missing(MetaPathFinder):
    """Says of pandas that it is not there. Compiled code, as PyArrow's is, takes a None in sys.modules for a module."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(f"{fullname} is not imported here", name=fullname)


@contextmanager
def _hidden(*packages: str) -> Iterator[None]:
    """Who asks whether these packages are installed is told no, but for those that are imported already."""
    hidden: dict[str, Any] = {name: None for name in packages if name not in sys.modules}
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
