"""Repeated ids of a night are found over any number of splits, in pieces of any size."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pipeline.batch_api import duplicates
from pipeline.batch_api.duplicates import encode_ids, find_duplicates, id_record, load_duplicates
from pipeline.layout import token_object
from pipeline.objects import Objects

Row = tuple[str, int, int, bool]


def expected(splits: list[list[Row]]) -> list[set[tuple[int, int]]]:
    """By the definition: all rows in the order of the input, and the ids that were there."""
    seen: set[str] = set()
    found: list[set[tuple[int, int]]] = []
    for rows in splits:
        found.append(set())
        for name, piece, row, _ in rows:
            if name in seen:
                found[-1].add((piece, row))
            seen.add(name)
    return found


@pytest.mark.parametrize("at_once", [1, 7, 1 << 20])
@pytest.mark.parametrize("seed", range(5))
def test_all_but_the_first_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, at_once: int) -> None:
    monkeypatch.setattr(duplicates, "ROWS_AT_ONCE", at_once)
    rng = random.Random(seed)
    ids = 1 + rng.randrange(200)
    splits = [
        sorted(
            ((f"id-{rng.randrange(ids)}", piece, row, rng.random() < 0.8) for piece in range(3) for row in range(20)),
            key=lambda row: row[1:3],
        )
        for _ in range(1 + seed)
    ]
    objects, tokens, run = Objects(), f"{tmp_path}/tokens", f"{tmp_path}/run"
    for split, rows in enumerate(splits):
        shuffled = rng.sample(rows, len(rows))  # rejects are noted before the rows that wait for the tokenizer
        objects.put(token_object(tokens, split, "ids.bin"), encode_ids(b"".join(id_record(*row) for row in shuffled)))
    found = find_duplicates(objects, tokens, len(splits), run)
    wanted = expected(splits)
    assert [set(load_duplicates(objects, run, split)) for split in range(len(splits))] == wanted
    assert found.rows == sum(map(len, wanted)) > 0
    repeated = [(row[1:3], row[3], split) for split, rows in enumerate(splits) for row in rows]
    assert found.accepted == sum(accepted for place, accepted, split in repeated if place in wanted[split])


def test_a_night_of_different_ids_has_none(tmp_path: Path) -> None:
    objects, tokens, run = Objects(), f"{tmp_path}/tokens", f"{tmp_path}/run"
    for split in range(3):
        rows = b"".join(id_record(f"{split}-{row}", 0, row, accepted=True) for row in range(500))
        objects.put(token_object(tokens, split, "ids.bin"), encode_ids(rows))
    assert find_duplicates(objects, tokens, 3, run).rows == 0
    assert find_duplicates(objects, tokens, 0, run).rows == 0
    assert objects.list(f"{run}/") == []
