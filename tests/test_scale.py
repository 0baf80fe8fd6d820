"""Memory does not grow with the rows of a night, and the plan of a very large night is small, quick and right."""

from __future__ import annotations

import json
import time
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from plugins import register_targets
from tiny_models import make_model

from bench.scale import Night, StepCost, growth, read_events, step_costs, table
from compile.costs import default_costs
from compile.model import ModelInfo
from compile.planner import plan_shapes, rows_per_shape
from compile.shapes import ShapePlan
from compile.targets.encoders import cpu_candidates
from jobs import DS, JobHome, make_home, texts
from pipeline.job import Job
from pipeline.planning import length_counts
from pipeline.run_plan import RunPlan
from pipeline.shards import Shard, cut_shards, places_by_split
from pipeline.tokenized import SplitCounts

# ---- the plan of 100,000,000 rows

SPLITS, SPLIT_ROWS, LONGEST = 1_000, 100_000, 512
JOB = {"name": "large", "model": {"uri": "m"}, "input": {"uri": "in/", "text": "text"}, "output": {"uri": "out"}}


def simulated_splits() -> list[SplitCounts]:
    """Lengths as of film reviews: log-normal, median 180 tokens, cut at 512; every split differs."""
    rng = np.random.default_rng(0)
    lengths = np.arange(3, LONGEST + 1)
    weights = np.exp(-0.5 * ((np.log(lengths) - 5.2) / 0.7) ** 2) / lengths
    weights[-1] *= 60
    splits = []
    for index in range(SPLITS):
        counts = rng.multinomial(SPLIT_ROWS, weights / weights.sum())
        known = [(int(length), int(count)) for length, count in zip(lengths, counts, strict=True) if count]
        own, rows = zip(*known, strict=True)
        splits.append(SplitCounts(index, own, rows, "<u2", SPLIT_ROWS, 0, {}, 0, 0, (SPLIT_ROWS,)))
    return splits


@dataclass(frozen=True)
class LargePlan:
    splits: list[SplitCounts]
    shapes: ShapePlan
    shards: tuple[Shard, ...]
    stored: bytes
    cpu_s: float
    peak_bytes: int


@pytest.fixture(scope="module")
def large() -> LargePlan:
    """Planned as pipeline.planning does, stored, and read back as every worker does."""
    splits = simulated_splits()
    tracemalloc.start()
    started = time.process_time()
    shapes = plan_shapes(
        length_counts(splits, LONGEST), default_costs("openvino"), cpu_candidates(LONGEST), 12, LONGEST
    )
    shards = tuple(cut_shards(splits, shapes))
    model = ModelInfo("d", "bert", ("a", "b"), "single_label", 512, 0, 30522, True)
    offsets = tuple((0,) for _ in splits)
    plan = RunPlan(
        "f", Job.model_validate(JOB), DS, "s", "t", model, "bf16", shapes, ("k",) * 12, shards, offsets, 0, None
    )
    stored = json.dumps(plan.to_json()).encode()
    read = RunPlan.from_json(json.loads(stored))
    cpu_s = time.process_time() - started
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert read == plan
    return LargePlan(splits, shapes, shards, stored, cpu_s, peak_bytes)


def test_the_plan_of_100_million_rows_is_small_and_quick(large: LargePlan) -> None:
    assert sum(split.accepted for split in large.splits) == 100_000_000
    assert len(large.stored) < 50e6
    assert large.peak_bytes < 100e6, "planned, stored and read back, all at once"
    assert large.cpu_s < 30
    # Its size follows the shards, which follow the tokens, and splits times shapes.
    assert len(large.stored) < 60 * (len(large.shards) + SPLITS * len(large.shapes.shapes))


def test_the_plan_of_100_million_rows_has_each_row_once_where_it_fits(large: LargePlan) -> None:
    assert [shard.index for shard in large.shards] == list(range(len(large.shards)))
    found = np.array(
        [(part.split, part.start, part.stop, shard.shape) for shard in large.shards for part in shard.ranges]
    )
    split, start, stop, shape = found[np.lexsort((found[:, 1], found[:, 0]))].T
    first = np.concatenate([[True], split[1:] != split[:-1]])
    last = np.append(first[1:], True)
    assert split[first].tolist() == list(range(SPLITS))
    assert (start[first] == 0).all()
    assert (stop[last] == SPLIT_ROWS).all()
    assert (start[1:][~first[1:]] == stop[:-1][~first[1:]]).all(), "each range begins where the one before it ends"
    bounds = np.array([item.length for item in large.shapes.shapes])
    for index, counts in enumerate(large.splits):
        own = split == index
        lengths = _lengths_at(counts, stop[own] - 1)
        assert (lengths <= bounds[shape[own]]).all()
    rows = np.bincount(found[:, 3], found[:, 2] - found[:, 1], len(bounds))
    at_home = rows_per_shape(large.shapes, length_counts(large.splits, LONGEST))
    batches = [item.batch for item in large.shapes.shapes]
    assert all(abs(a - b) < 2 * max(batches) for a, b in zip(rows, at_home, strict=True)), "only remainders move"


def _lengths_at(counts: SplitCounts, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Token length of rows of the split's sorted order."""
    return np.array(counts.lengths)[np.searchsorted(np.cumsum(counts.counts), rows, side="right")]


def test_places_by_split_are_the_ranges_of_all_shards(large: LargePlan) -> None:
    places = places_by_split(large.shards)
    assert sum(place.stop - place.start for own in places.values() for place in own) == 100_000_000
    for place in places[7]:
        before = place.shard.ranges[: place.shard.ranges.index(place.part)]
        assert place.start == sum(part.stop - part.start for part in before)
        assert place.stop - place.start == place.part.stop - place.part.start


# ---- peak memory of each step

SMALL, LARGE = 8_000, 40_000
GROWTH_BYTES = 10e6
"""What a step may take more over the larger night, measured: 6 MB. Keeping 300 bytes of each row would be found."""


@pytest.fixture(scope="module")
def stub_home(tmp_path_factory: pytest.TempPathFactory) -> JobHome:
    """A job on the stub target, whose splits have 2,000 rows; its nights are named by their date."""
    from safetensors.numpy import load_file, save_file

    folder = tmp_path_factory.mktemp("scale")
    weights = make_model(folder / "model") / "model.safetensors"
    tensors = load_file(weights)
    tensors["classifier.weight"][:] = 0
    save_file(tensors, weights, metadata={"format": "pt"})
    environment = register_targets(folder / "plugin", {"stub": "bench.stub_target"})
    shapes = {"shapes": ["64x64"], "max_length": 64, "input": {"keep": {}, "split_rows": 2_000}}
    home = make_home(folder, folder / "model", str(folder), target="stub", workers=1, **shapes)
    source = texts(2_000, longest=60)
    for ds, rows in (("2026-01-01", SMALL), ("2026-01-02", LARGE)):
        path = folder / f"in/ds={ds}/rows.parquet"
        path.parent.mkdir(parents=True)
        columns = {"id": [f"r{k}" for k in range(rows)], "text": [source[k % len(source)] for k in range(rows)]}
        pq.write_table(pa.table(columns), path, row_group_size=2_000)
    return JobHome(home.folder, home.file, {**home.environment, **environment})


def test_no_step_takes_more_memory_over_more_rows(stub_home: JobHome) -> None:
    peaks = []
    for ds, rows in (("2026-01-01", SMALL), ("2026-01-02", LARGE)):
        assert stub_home.run(ds=ds)["predicted"] == rows
        state = stub_home.folder / "out" / "_lengthwise"
        events = [event for path in state.glob(f"*/ds={ds}") for event in read_events(path)]
        peaks.append({step: cost.peak_mb * 1e6 for step, cost in step_costs(events).items()})
    small, large = peaks
    assert small.keys() >= {"tokenize", "plan", "infer", "publish", "commit"}
    grown = {step: large[step] - small[step] for step in large if large[step] - small[step] > GROWTH_BYTES}
    assert not grown, f"bytes more for {LARGE - SMALL:,} rows more: {grown}; all: {peaks}"


# ---- the benchmark's table


def test_the_table_tells_what_grew() -> None:
    nights = [
        Night("stub", rows, 1, 2, 3.0, {"tokenize": StepCost(peak, 1.0), "coordinator": StepCost(90.0, 2.0)}, 2048)
        for rows, peak in ((10_000, 100.0), (100_000, 125.0))
    ]
    assert growth(nights, "tokenize") == 1.25
    text = table(nights)
    assert "| stub | 100,000 | 1 | 2 | 2 | 90 | 125 |" in text
    assert "| stub | 100,000 | 1 | 2 | 2 | 2.00 | 1.00 |" in text
    assert "stub: largest peak over smallest: coordinator 1.00, tokenize 1.25" in text
