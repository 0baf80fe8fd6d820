"""Which artifacts and blobs of a store may go: what is not kept, once no builder can still be counting on it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass

from compile.artifacts import ArtifactStore
from compile.conversions import collect_conversions
from compile.errors import ArtifactError
from compile.shapes import canonical_json

GRACE_S = 86400.0


@dataclass(frozen=True, slots=True)
class Collected:
    """What a `gc` did."""

    artifacts: tuple[str, ...]
    """Keys whose manifests were deleted."""
    blobs: tuple[str, ...]
    """Digests of deleted blobs."""
    waiting: tuple[str, ...]
    """Digests of unused blobs whose grace has not passed."""


def gc(store: ArtifactStore, keep: Collection[str], now_s: float, grace_s: float = GRACE_S) -> Collected:
    """Delete all artifacts but `keep`, and blobs that nothing has used since a `gc` at least `grace_s` ago.

    The grace is for builders at work: they store blobs first and the manifest last. `now_s` is Unix time.
    """
    dropped = [key for key in store.artifact_keys() if key not in keep]
    for key in dropped:
        store.forget(key)
    stored = {uri.rsplit("/", 1)[1] for uri in store.blobs.list(f"{store.uri}/blobs/")}
    unused = stored - {file.sha256 for manifest in store.list() for file in manifest.files.values()}
    unused -= collect_conversions(store)
    since = {sha256: seen for sha256, seen in _unused_since(store).items() if sha256 in unused}
    expired = sorted(sha256 for sha256 in unused if now_s - since.get(sha256, now_s) >= grace_s)
    for sha256 in expired:
        store.blobs.delete(store.blob_uri(sha256))
    waiting = {sha256: since.get(sha256, now_s) for sha256 in sorted(unused.difference(expired))}
    store.blobs.put(f"{store.uri}/unused.json", canonical_json(waiting))
    return Collected(tuple(dropped), tuple(expired), tuple(waiting))


def discard_damaged(store: ArtifactStore, keys: Collection[str]) -> list[str]:
    """Delete those of the artifacts whose manifest or any blob is damaged or missing, with the damaged blobs.

    Reads every byte, each blob once. Returns the deleted keys; a build makes them anew.
    """
    sound: dict[str, bool] = {}
    discarded = []
    for key in keys:
        try:
            manifest = store.manifest(key)
            digests = [file.sha256 for file in manifest.files.values()] if manifest else []
        except ArtifactError:
            digests = [""]  # unreadable: no blob of it is known
        for sha256 in digests:
            if sha256 and sha256 not in sound:
                sound[sha256] = _is_sound(store, sha256)
        if any(not sound.get(sha256, False) for sha256 in digests):
            store.remove(key)
            discarded.append(key)
    for sha256 in (each for each, good in sound.items() if not good):
        store.blobs.delete(store.blob_uri(sha256))
    return discarded


def _is_sound(store: ArtifactStore, sha256: str) -> bool:
    try:
        return hashlib.sha256(store.blobs.get(store.blob_uri(sha256))).hexdigest() == sha256
    except FileNotFoundError:
        return False


def _unused_since(store: ArtifactStore) -> dict[str, float]:
    """When each unused blob was first seen unused, Unix time."""
    try:
        found = json.loads(store.blobs.get(f"{store.uri}/unused.json"))
        return {sha256: float(seen) for sha256, seen in found.items()}
    except (FileNotFoundError, ValueError, AttributeError):
        return {}
