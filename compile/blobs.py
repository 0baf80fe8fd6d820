"""What the artifact store needs of an object store. `pipeline.objects` implements it for S3 and local paths."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Blobs(Protocol):
    """Objects by URI (`s3://bucket/key` or a local path). Every write is atomic: a reader sees all of it or none."""

    def get(self, uri: str) -> bytes:
        """Whole content. Raises FileNotFoundError when there is no such object."""

    def put_new(self, uri: str, data: bytes) -> bool:
        """Create once: True when this call created it, False when it existed (which is then left as it is)."""

    def put(self, uri: str, data: bytes) -> None:
        """Create or replace."""

    def upload_new(self, path: Path, uri: str) -> bool:
        """`put_new` of a local file's content."""

    def download(self, uri: str, path: Path) -> None:
        """Copy to a local path, atomically (temporary file and rename). Raises FileNotFoundError."""

    def exists(self, uri: str) -> bool: ...

    def list(self, prefix: str) -> list[str]:
        """URIs under a prefix that ends in `/`, sorted."""

    def delete(self, uri: str) -> None:
        """Remove; no error when it is gone already."""
