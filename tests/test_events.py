"""The event log: what is written can be read back, also of steps that failed, and overlaps are counted once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.event_tally import EventTally
from pipeline.events import EventLog, read_events, timed, union_seconds
from pipeline.objects import Objects


def events(objects: Objects, uri: str) -> list[dict[str, Any]]:
    """Every event by its start."""
    return sorted(read_events(objects, uri), key=lambda event: (event["started"], event["ended"]))


def test_events_of_several_writers_are_read_by_their_start(tmp_path: Path) -> None:
    objects, uri = Objects(), f"{tmp_path}/events/"
    first, second = EventLog(objects, uri, step="infer", index=0), EventLog(objects, uri, step="infer", index=1)
    first.write("shard", 3.0, 4.0, shard=7)
    second.write("shard", 1.0, 2.0, text="a\u2028b\nc\ud800", path=Path("p"))
    first.write("shard", 2.0, 5.0)
    for log in (first, second):
        log.flush()
        log.flush()
    found = events(objects, uri)
    assert [(event["started"], event["index"]) for event in found] == [(1.0, 1), (2.0, 0), (3.0, 0)]
    assert {event["event"] for event in found} == {"shard"}
    assert found[0]["text"] == "a\u2028b\nc\ud800"
    assert found[2]["shard"] == 7
    assert all({"host", "pid", "ended", "step"} <= event.keys() for event in found)
    assert len(objects.list(uri)) == 2, "one object per writer"


def test_a_long_log_goes_on_in_a_new_object(tmp_path: Path) -> None:
    """So that a flush writes no more than so many lines, however long the night is."""
    objects, uri = Objects(), f"{tmp_path}/events/"
    log = EventLog(objects, uri, step="infer")
    for number in range(1_234):
        log.write("shard", number, number + 1, shard=number)
    log.flush()
    log.flush()
    assert [event["shard"] for event in events(objects, uri)] == list(range(1_234))
    assert [objects.get(name).count(b"\n") for name in objects.list(uri)] == [500, 500, 234]


def test_a_log_without_events_reads_as_none(tmp_path: Path) -> None:
    objects, uri = Objects(), f"{tmp_path}/events/"
    assert events(objects, uri) == []
    EventLog(objects, uri).flush()
    assert events(objects, uri) == []


def test_a_timed_step_is_written_whether_it_succeeds_or_not(tmp_path: Path) -> None:
    objects, uri = Objects(), f"{tmp_path}/events/"
    log = EventLog(objects, uri, step="plan")
    with timed(log, "plan") as fields:
        fields["rows"] = 3
    with pytest.raises(KeyError), timed(log, "plan"):
        raise KeyError("x")
    good, bad = events(objects, uri)
    assert (good["ok"], good["rows"]) == (True, 3)
    assert (bad["ok"], bad["error"]) == (False, "KeyError")
    assert good["started"] <= good["ended"] <= bad["started"] <= bad["ended"]


@pytest.mark.parametrize(
    ("intervals", "seconds"),
    [
        ([], 0.0),
        ([(1.0, 3.0)], 2.0),
        ([(1.0, 3.0), (2.0, 4.0), (10.0, 11.0)], 4.0),
        ([(0.0, 10.0), (2.0, 3.0), (1.0, 9.0)], 10.0),
        ([(5.0, 5.0), (1.0, 2.0), (1.0, 2.0)], 1.0),
    ],
)
def test_union_seconds(intervals: list[tuple[float, float]], seconds: float) -> None:
    assert union_seconds(intervals) == seconds


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted), max_size=12))
def test_union_seconds_counts_each_second_once(intervals: list[list[int]]) -> None:
    covered = {second for start, end in intervals for second in range(start, end)}
    assert union_seconds([(float(start), float(end)) for start, end in intervals]) == len(covered)


def shard_event(shard: int, core: int, started: float, *, created: bool) -> dict[str, Any]:
    return {
        "event": "shard", "host": "h", "core": core, "shard": shard, "shape": "4x16", "rows": 4, "batches": 1,
        "slot_tokens": 64, "real_tokens": 50, "started": started, "load_s": 0.1, "execute_s": 1.0,
        "cpu_s": 0.5, "created": created,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_a_tally_takes_each_shard_once_in_any_order(seed: int) -> None:
    """Of a shard that was done again, the attempt whose result counts, or the first."""
    written = [
        {"event": "infer", "started": 1.0, "ended": 9.0},
        shard_event(0, 0, 1.0, created=True),
        shard_event(1, 0, 2.0, created=False),
        shard_event(1, 1, 3.0, created=True),
        shard_event(2, 1, 5.0, created=False),
        shard_event(2, 0, 4.0, created=False),
    ]
    random.Random(seed).shuffle(written)
    tally = EventTally(written)
    assert [event["event"] for event in tally.steps] == ["infer"]
    assert [(shard.started, shard.created) for shard in tally.shards] == [(1.0, True), (3.0, True), (4.0, False)]
    assert tally.attempts == 5
    assert tally.busy_s == {("h", 0): 3.0, ("h", 1): 2.0}
    assert tally.shards_done == {("h", 0): 3, ("h", 1): 2}
