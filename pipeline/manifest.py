"""The committed version of a partition: what readers see, and what a run compares itself with."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
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
    origin: dict[str, Any] = field(default_factory=dict)
    """What a retry of its rejects compares itself with (see pipeline.retry)."""
    retried: tuple[str, ...] = ()
    """Fingerprints of the runs that this one retried the rejects of, the first run first."""

    def holds(self, fingerprint: str) -> bool:
        """Whether a run's rows are all in this version: it is that run, or it has retried that run's rejects."""
        return fingerprint in (self.fingerprint, *self.retried)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def committed(context: Context) -> Manifest | None:
    """The partition's committed version, None when nothing was published yet."""
    try:
        data = json.loads(context.objects.get(context.layout.manifest(context.ds)))
    except FileNotFoundError:
        return None
    return Manifest(**{**data, "retried": tuple(data.get("retried", ()))})
