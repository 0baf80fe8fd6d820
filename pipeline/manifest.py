"""The committed version of a partition: what readers see, and what a run compares itself with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pipeline.context import Context


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `is_published` compares and what the report counts."""

    fingerprint: str
    ds: str
    rows: int
    predicted: int
    rejected: int
    reasons: dict[str, int]
    real_tokens: int
    truncated_rows: int
    truncated_tokens: int
    files: dict[str, list[dict[str, Any]]]
    """Table -> files with name, rows, size_bytes, sha256, and etag where readers list files."""
    generation: int = 0
    """See pipeline.generation."""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def committed(context: Context) -> Manifest | None:
    """The partition's committed version, None when nothing was published yet."""
    try:
        return Manifest(**json.loads(context.objects.get(context.layout.manifest(context.ds))))
    except FileNotFoundError:
        return None
