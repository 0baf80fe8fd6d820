"""Digests that name things by what they are made of: snapshots, tokenised splits, runs and the code itself."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import compile.shapes
from compile.shapes import canonical_json


def digest(data: Any) -> str:
    """32 hex digits of the SHA-256 of the value's canonical JSON."""
    return hashlib.sha256(canonical_json(data)).hexdigest()[:32]


@functools.cache
def code_version() -> str:
    """Digest of the sources of `pipeline` and `compile`: any changed line may change an output byte."""
    sha = hashlib.sha256()
    for package in (Path(__file__).parent, Path(compile.shapes.__file__).parent):
        for path in sorted(package.rglob("*.py")):
            sha.update(str(path.relative_to(package.parent)).encode() + b"\0" + path.read_bytes() + b"\0")
    return sha.hexdigest()[:16]
