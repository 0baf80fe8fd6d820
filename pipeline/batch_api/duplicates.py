"""Which lines of a night's batch files repeat a custom_id: all but the first, whatever becomes of that one.

Each split brings the digests of its ids in order, so that all splits together are compared piece by piece: memory is
that of some million ids, however long the night.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.layout import duplicates_object, token_object
from pipeline.objects import Objects

ID = np.dtype([("high", "<u8"), ("low", "<u8"), ("piece", "<u4"), ("row", "<u4"), ("accepted", "?")])
"""128 bits of a digest of the id, the row's place in its split, and whether it was tokenised."""
_BUCKETS = 256
_INDEX = np.dtype("<u8")
_INDEX_BYTES = (_BUCKETS + 1) * _INDEX.itemsize
ROWS_AT_ONCE = 1 << 20
PLACE = np.dtype([("piece", "<u4"), ("row", "<u4")])


def id_record(name: str, piece: int, row: int, accepted: bool) -> bytes:
    """One ID."""
    high, low = struct.unpack("<QQ", hashlib.blake2b(name.encode(), digest_size=16).digest())
    return struct.pack("<QQII?", high, low, piece, row, accepted)


def encode_ids(given: bytes) -> bytes:
    """The object ids.bin of a split, from the IDs of its rows: an index by first byte, then the records in order."""
    records = np.frombuffer(given, ID)
    records = records[np.argsort(records["high"], kind="stable")]
    index = np.searchsorted(records["high"] >> np.uint64(56), np.arange(_BUCKETS + 1)).astype(_INDEX)
    return index.tobytes() + records.tobytes()


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Of one night."""

    rows: int
    accepted: int
    """Those that were tokenised, and will be generated for nothing."""


def find_duplicates(objects: Objects, tokens_uri: str, splits: int, run_uri: str) -> Duplicates:
    """Store the places of repeated ids under the run, one object for each split that has some.

    Raises FileNotFoundError for a split that is not tokenised.
    """
    uris = [token_object(tokens_uri, split, "ids.bin") for split in range(splits)]
    indexes = [np.frombuffer(objects.get(uri, 0, _INDEX_BYTES), _INDEX).astype(np.int64) for uri in uris]
    places: dict[int, list[NDArray[Any]]] = {}
    for start, stop in _groups(indexes):
        for split, repeated in _repeated(
            [_read(objects, *given, start, stop) for given in zip(uris, indexes, strict=True)]
        ):
            places.setdefault(split, []).append(repeated)
    rows = accepted = 0
    for split, parts in places.items():
        found = np.sort(np.concatenate(parts), order=("piece", "row"))
        objects.put_new(duplicates_object(run_uri, split), found[["piece", "row"]].astype(PLACE).tobytes())
        rows, accepted = rows + len(found), accepted + int(found["accepted"].sum())
    return Duplicates(rows, accepted)


def load_duplicates(objects: Objects, run_uri: str, split: int) -> frozenset[tuple[int, int]]:
    """(piece, row in piece) of the rows of a split that repeat an id."""
    try:
        found = np.frombuffer(objects.get(duplicates_object(run_uri, split)), PLACE)
    except FileNotFoundError:
        return frozenset()
    return frozenset((int(piece), int(row)) for piece, row in found)


def _groups(indexes: Sequence[NDArray[np.int64]]) -> Iterator[tuple[int, int]]:
    """Runs of buckets that together hold about ROWS_AT_ONCE rows of all splits."""
    if not indexes:
        return
    sizes = np.diff(np.sum(indexes, axis=0))
    start = held = 0
    for bucket, size in enumerate(sizes.tolist()):
        if held and held + size > ROWS_AT_ONCE:
            yield start, bucket
            start, held = bucket, 0
        held += size
    yield start, _BUCKETS


def _read(objects: Objects, uri: str, index: NDArray[np.int64], start: int, stop: int) -> NDArray[Any]:
    first, last = (_INDEX_BYTES + int(index[bucket]) * ID.itemsize for bucket in (start, stop))
    return np.frombuffer(objects.get(uri, first, last), ID)


def _repeated(records: Sequence[NDArray[Any]]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Per split, the records whose id is that of an earlier row of the night."""
    split_of = np.repeat(np.arange(len(records)), [len(part) for part in records])
    both = np.concatenate(records)
    order = np.lexsort((both["row"], both["piece"], split_of, both["low"], both["high"]))
    same = (both["high"][order][1:] == both["high"][order][:-1]) & (both["low"][order][1:] == both["low"][order][:-1])
    later = order[1:][same]
    for split in np.unique(split_of[later]).tolist():
        yield split, both[later[split_of[later] == split]]
