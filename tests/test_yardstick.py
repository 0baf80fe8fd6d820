"""What was timed while the core was slow counts as if the core had been fast."""

from __future__ import annotations

from pathlib import Path

import pytest
from artifact_tools import build, open_store, random_rows

from compile.artifacts import artifact_spec
from compile.build import measure
from compile.costs import job_costs, probed_uri
from compile.model import read_model
from compile.probe import probe_costs, probe_shapes
from compile.samples import choose_samples
from compile.shapes import Shape, canonical_json
from compile.targets import EncoderBatch, load_target
from compile.yardstick import at_best_speed, yardstick

SHORT, LONG = Shape(length=16, batch=8), Shape(length=64, batch=2)


def test_what_was_timed_on_a_slow_core_counts_as_on_a_fast_one() -> None:
    timings = {SHORT: [(0.010, 0.002)], LONG: [(0.050, 0.004), (0.026, 0.002), (0.090, 0.006)]}
    assert at_best_speed(timings) == pytest.approx({SHORT: 0.010, LONG: 0.026})


def test_without_a_yardstick_seconds_are_what_was_measured() -> None:
    assert at_best_speed({}) == {}
    assert at_best_speed({SHORT: [(3.0, 0.0), (1.0, 0.0), (2.0, 0.0)]}) == {SHORT: 2.0}
    assert at_best_speed({SHORT: [(3.0, 0.0)], LONG: [(1.0, 0.5)]}) == {SHORT: 3.0, LONG: 1.0}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_yardstick_takes_some_milliseconds_each_time(precision: str) -> None:
    yard = yardstick(precision)
    assert all(1e-4 < yard() < 1 for _ in range(3))


def test_builds_and_probes_of_a_cpu_keep_it_and_plans_weigh_with_it(tmp_path: Path, tiny_model: Path) -> None:
    store, model, target = open_store(tmp_path), read_model(tiny_model), load_target("torch")
    manifest = build(store, tiny_model, [SHORT])[0]
    assert manifest.timing is not None
    assert manifest.timing.yardstick_s > 0
    assert store.check(artifact_spec(target, model, SHORT, "fp32")).timing == manifest.timing
    probe_costs(store, target, model, tiny_model, "fp32", random_rows(model, [4, 20, 60]), 64)
    built, yard = manifest.timing.median_s, manifest.timing.yardstick_s
    probed = {shape: job_costs(store, target, model, "fp32").seconds(shape)[0] for shape in probe_shapes(target, 64)}
    slower = {str(shape): 2 * seconds for shape, seconds in probed.items()}
    yards = dict.fromkeys(slower, 2 * yard)
    uri = probed_uri(store, target, model, "fp32")
    store.blobs.put(uri, canonical_json({"shapes": slower, "yardsticks": yards, "load_s": 0.1}))
    found = job_costs(store, target, model, "fp32").measured
    assert found == pytest.approx({SHORT: built, **probed})


def test_a_device_is_timed_by_the_clock_alone(tiny_model: Path) -> None:
    model, calls = read_model(tiny_model), []

    class Device:
        shape = SHORT

        def run(self, batch: EncoderBatch) -> None:
            calls.append(batch)

    samples = choose_samples(random_rows(model, [4, 10]), SHORT, model.max_positions)
    timing = measure(Device(), samples, model.pad_token_id, None)  # type: ignore[arg-type]
    assert timing.yardstick_s == 0
    assert len(calls) == timing.repeats + 1
