"""Rows that break the device are found by halving: exactly they, in few executions, the others' results unmoved."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from numpy.typing import NDArray

from compile.errors import DeviceError, ShapeMismatch
from compile.shapes import Shape
from compile.targets import EncoderBatch
from pipeline.execution import BROKEN_AFTER_ROWS, Executor, Health, is_broken
from pipeline.job import parse_job
from pipeline.shard_result import ShardResult
from pipeline.tasks import load_task
from pipeline.tasks.classify import logits_array, logits_of, logits_type
from pipeline.tokenized import ROW, TokenBlock
from pipeline.workloads.classify import EncoderEngine

POISON = 99


class Device:
    """Logits are the row's token sum and its negative; a batch with POISON fails, `flaky` of the first ones as well."""

    def __init__(self, batch: int, *, flaky: int = 0, dead: bool = False, error: type[Exception] = DeviceError) -> None:
        self.shape = Shape(length=4, batch=batch)
        self.flaky, self.dead, self.error = flaky, dead, error

    def run(self, batch: EncoderBatch) -> NDArray[np.float32]:
        if self.dead or self.flaky or (batch.input_ids == POISON).any():
            self.flaky = max(0, self.flaky - 1)
            raise self.error("broken")
        sums = (batch.input_ids * batch.attention_mask).sum(axis=1).astype(np.float32)
        return np.stack([sums, -sums], axis=1)


def block(rows: int, poisoned: set[int]) -> TokenBlock:
    """Row k holds the token k + 100, and a poisoned one POISON after it."""
    tokens = [[row + 100, POISON] if row in poisoned else [row + 100] for row in range(rows)]
    flat = np.array([token for row in tokens for token in row], np.int64)
    return TokenBlock(
        flat, np.array([len(row) for row in tokens], np.int64), np.zeros(rows, ROW), np.zeros(rows, np.int64)
    )


def executor(device: Device, said: list[str] | None = None) -> Executor:
    engine = EncoderEngine(device, device.shape.batch, 0, logits_type(2))
    return Executor(engine, Health(), (said if said is not None else []).append)


@pytest.mark.parametrize("seed", range(30))
def test_exactly_the_poisoned_rows_are_faults_within_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    batch, rows = rng.choice([1, 2, 5, 8, 32]), rng.randint(1, 90)
    poisoned = set(rng.sample(range(rows), min(rows - 1, rng.randint(0, 6))))
    said: list[str] = []
    used = executor(Device(batch), said)
    result = used.run(block(rows, poisoned))
    assert {row for row, fault in enumerate(result.faults) if fault} == poisoned
    assert set(result.faults) <= {None, "device_error"}
    expected = np.array([[row + 100, -row - 100] for row in range(rows)], np.float32)
    good = [row for row in range(rows) if row not in poisoned]
    assert (logits_of(result.output.take(good)) == expected[good]).all()
    assert result.output.null_count == len(poisoned)
    assert said == ["DeviceError: broken"] * len(poisoned)
    batches = -(-rows // batch)
    assert batches <= used.executions <= batches + len(poisoned) * (2 * math.ceil(math.log2(batch)) + 2)


@pytest.mark.parametrize("flaky", range(1, 5))
def test_a_device_that_recovers_costs_no_row(flaky: int) -> None:
    result = executor(Device(8, flaky=flaky)).run(block(20, set()))
    assert result.fault_count == 0


def test_any_error_of_an_engine_counts_but_a_wrong_shape_is_a_defect() -> None:
    assert executor(Device(4, error=KeyError)).run(block(9, {3})).fault_count == 1
    with pytest.raises(ShapeMismatch):
        executor(Device(4, error=ShapeMismatch)).run(block(9, {3}))


def test_a_dead_device_is_no_bad_row() -> None:
    used = executor(Device(8, dead=True))
    with pytest.raises(DeviceError, match="fails on a batch without any row, too: DeviceError: broken"):
        used.run(block(100, set()))
    assert used.executions <= 6


def test_a_night_of_failing_rows_is_not_rejected_row_by_row() -> None:
    used = executor(Device(8))
    with pytest.raises(DeviceError, match="32 rows failed on the device, each by itself, and not one worked"):
        used.run(block(1000, set(range(1000))))
    assert used.executions < 4 * BROKEN_AFTER_ROWS


def test_many_bad_rows_after_a_good_one_are_bad_rows() -> None:
    assert executor(Device(8)).run(block(100, set(range(8, 60)))).fault_count == 52


@pytest.mark.parametrize(("good", "faulty", "broken"), [(0, 31, False), (0, 32, True), (1, 1000, False), (0, 0, False)])
def test_when_rows_speak_against_the_device(good: int, faulty: int, broken: bool) -> None:
    assert is_broken(good, faulty) is broken


JOB = parse_job({"name": "x", "model": {"uri": "m"}, "input": {"uri": "i/", "text": "t"}, "output": {"uri": "o"}}, "")


def test_a_result_survives_its_storage() -> None:
    kind = logits_type(2)
    executed = logits_array(np.array([[1, 2], [3, np.inf]], np.float32))
    parts = [ShardResult.executed(executed), ShardResult.faulty("device_error", kind)]
    found = ShardResult.decode(ShardResult.joined(parts, kind).encode())
    assert found.faults == (None, None, "device_error")
    assert found.output.to_pylist() == [[1, 2], [3, np.inf], None]
    assert load_task("classify").faults(found.output, JOB) == {1: "nan_logits"}
    assert len(ShardResult.decode(ShardResult.joined([], kind).encode())) == 0
