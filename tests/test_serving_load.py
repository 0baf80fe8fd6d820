"""The load test's own arithmetic: percentiles, errors by kind, every request sent once."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator

import pytest

from bench.serving_load import Send, http_sender, measure, percentile, problem

GOOD = b'[{"label": "a", "score": 0.5}]'


def test_percentiles_are_of_the_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert percentile([7.0], 0.5) == percentile([7.0], 0.99) == 7
    assert percentile([1.0, 2.0], 0.5) == 1
    assert math.isnan(percentile([], 0.5))


@pytest.mark.parametrize("clients", [1, 4])
def test_every_request_is_sent_once_and_each_error_is_counted(clients: int) -> None:
    sent: list[bytes] = []

    @contextlib.contextmanager
    def connect() -> Iterator[Send]:
        def send(body: bytes) -> bytes:
            sent.append(body)
            if body == b"1":
                raise ConnectionResetError("gone")
            return {b"0": GOOD, b"2": b"[]", b"3": b"{"}[body]

        yield send

    found = measure(connect, [b"0", b"1", b"2", b"3"], requests=40, clients=clients)
    assert sorted(sent) == sorted([b"0", b"1", b"2", b"3"] * 10)
    broken = next(what for what in found.errors if what.startswith("JSONDecodeError"))
    assert found.errors == {"ConnectionResetError: gone": 10, "no label and score": 10, broken: 10}
    assert 0 < found.p50_ms <= found.max_ms
    assert "40 requests" in found.line()


def test_a_client_that_cannot_connect_is_an_error_of_every_request_it_left() -> None:
    found = measure(lambda: contextlib.nullcontext(http_sender), [b"0"], requests=3)
    assert sum(found.errors.values()) == 3
    assert math.isnan(found.mean_ms)


def test_what_counts_as_an_answer() -> None:
    assert problem(json.loads(GOOD)) is None
    assert problem([]) == problem({}) == problem([{"label": "a"}]) == "no label and score"
