"""The slot scheduler: exact small runs, and what must hold for any workload."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compile.generation.slots import Decode, Prefill, SlotGrid, SlotScheduler, SlotUse, Work


def run(scheduler: SlotScheduler, lengths: list[int]) -> tuple[list[Prefill | Decode], SlotUse]:
    """Drive to the end; request i really ends after lengths[i] tokens. Checks what holds at every step."""
    grid, steps = scheduler.grid, []
    tokens, where = [0] * len(lengths), {}
    while (step := scheduler.next()) is not None:
        steps.append(step)
        assert len(set(step.slots)) == len(step.slots)
        assert all(0 <= slot < grid.slots for slot in step.slots)
        if isinstance(step, Prefill):
            assert 1 <= len(step.slots) <= grid.prefill_rows
            assert not set(step.slots) & set(where), "a prompt was put over a living request"
            where.update(zip(step.slots, step.works, strict=True))
        else:
            assert dict(zip(step.slots, step.works, strict=True)) == where, "a living request was left out"
            assert all(0 < position < grid.positions for position in step.positions)
        for index in step.works:
            tokens[index] += 1
        ended = [slot for slot, index in zip(step.slots, step.works, strict=True) if tokens[index] == lengths[index]]
        assert scheduler.finish(ended) == tuple(sorted(ended))
        for slot in ended:
            del where[slot]
    assert tokens == lengths
    return steps, scheduler.use()


def test_three_requests_in_two_slots() -> None:
    works = [Work(3, 2), Work(5, 4), Work(4, 3)]
    steps, use = run(SlotScheduler(works, SlotGrid(slots=2, prompt_length=6, positions=10)), [2, 4, 2])
    assert steps == [
        Prefill((0,), (1,)),  # the longest first
        Prefill((1,), (2,)),
        Decode((0, 1), (1, 2), (5, 4)),
        Prefill((1,), (0,)),  # request 2 ended one token early: its slot is refilled at once
        Decode((0, 1), (1, 0), (6, 3)),
        Decode((0,), (1,), (7,)),
    ]
    assert (use.decode_tokens, use.decode_slots, use.wasted_slots, use.tail_steps) == (5, 6, 1, 2)
    assert use.occupancy == pytest.approx(5 / 6)
    assert use.occupancy_before_tail == 1.0
    assert use.prefill_padding == pytest.approx(1 - 12 / 18)


def test_a_request_that_ends_with_its_first_token_never_decodes() -> None:
    steps, use = run(SlotScheduler([Work(1, 1)] * 3, SlotGrid(1, 4, 5)), [1, 1, 1])
    assert steps == [Prefill((0,), (index,)) for index in range(3)]
    assert (use.decode_steps, use.occupancy) == (0, 1.0)


def test_prefills_of_several_prompts_fill_up_while_few_slots_wait() -> None:
    grid = SlotGrid(slots=40, prompt_length=4, positions=8, prefill_rows=4)
    steps, use = run(SlotScheduler([Work(2, 6)] * 80, grid), [2 + index % 4 for index in range(80)])
    before_tail = [step for step in steps if isinstance(step, Prefill)][:-1]
    assert all(len(step.slots) >= 3 for step in before_tail), "2 of 40 slots may wait, so 3 prompts come together"
    assert use.occupancy_before_tail >= 0.95


def test_nothing_to_do_is_done() -> None:
    assert SlotScheduler([], SlotGrid(4, 8, 16)).next() is None


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (Work(9, 2), "request 1: its prompt of 9 tokens"),
        (Work(0, 2), "prompt of 0 tokens"),
        (Work(8, 9), "request 1: 8 prompt and 9 new tokens do not fit the 16 positions"),
        (Work(8, 0), "0 new tokens"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(work: Work, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SlotScheduler([Work(1, 1), work], SlotGrid(2, 8, 16))


@pytest.mark.parametrize("sizes", [(0, 4, 8, 1), (2, 4, 8, 3), (2, 4, 8, 0), (2, 4, 4, 1), (2, 0, 4, 1)])
def test_a_grid_that_cannot_be_is_refused(sizes: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="is not a grid"):
        SlotGrid(*sizes)


def test_steps_and_answers_must_alternate() -> None:
    scheduler = SlotScheduler([Work(1, 2)], SlotGrid(2, 4, 8))
    with pytest.raises(RuntimeError, match="without a step"):
        scheduler.finish([])
    scheduler.next()
    with pytest.raises(RuntimeError, match="not answered"):
        scheduler.next()
    with pytest.raises(ValueError, match=r"slots \[1\] were not part"):
        scheduler.finish([1])


def test_the_limit_ends_a_request_that_nobody_ended() -> None:
    scheduler = SlotScheduler([Work(2, 3)], SlotGrid(1, 4, 8))
    freed = []
    while scheduler.next() is not None:
        freed.append(scheduler.finish([]))
    assert freed == [(), (), (0,)]


def workload(seed: int, known: bool) -> tuple[list[Work], list[int], SlotGrid]:
    """A grid and some dozens to hundreds of requests; with `known`, what is expected is true and no slot ever waits."""
    rng = np.random.default_rng(seed)
    slots = int(rng.choice([1, 2, 5, 8, 16, 32]))
    prompt_length, limit = int(rng.integers(1, 200)), int(rng.integers(1, 60))
    prefill_rows = 1 if known else int(rng.integers(1, min(slots, 6) + 1))
    grid = SlotGrid(slots, prompt_length, prompt_length + limit, prefill_rows)
    count = slots * int(rng.integers(8, 14))
    spread = rng.choice(["even", "short", "all"])
    draw = {"even": rng.integers(1, limit + 1, count), "short": rng.geometric(0.1, count), "all": [limit] * count}
    lengths = np.clip(draw[spread], 1, limit).tolist()
    prompts = rng.integers(1, prompt_length + 1, count).tolist()
    works = [Work(prompt, limit, length if known else None) for prompt, length in zip(prompts, lengths, strict=True)]
    return works, lengths, grid


@pytest.mark.parametrize("known", [True, False])
def test_a_thousand_workloads_keep_the_slots_full_and_end_in_time(known: bool) -> None:
    for seed in range(500):
        works, lengths, grid = workload(seed, known)
        _, use = run(SlotScheduler(works, grid), lengths)
        assert use.prompts == len(works)
        assert use.decode_tokens == sum(length - 1 for length in lengths), "each row exactly once"
        assert use.occupancy_before_tail >= 0.95
        decodes = [length - 1 for length in lengths]
        bound = max(-(-sum(decodes) // grid.slots), *decodes)
        if known:
            # One step of rounding: with few tokens per slot, 5 % is less than a step.
            assert use.decode_steps <= max(1.05 * bound, bound + 1), (seed, grid)
        else:
            assert use.decode_steps <= bound / 0.95 + max(decodes), "Graham's bound where 5 % of the slots may wait"


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 7), st.integers(1, 7)), max_size=40),
    st.integers(1, 7),
    st.integers(1, 7),
)
@settings(max_examples=200, deadline=None)
def test_any_requests_in_any_grid(rows: list[tuple[int, int, int]], slots: int, prefill_rows: int) -> None:
    grid = SlotGrid(slots, 9, 16, min(slots, prefill_rows))
    works = [Work(prompt, limit) for prompt, limit, _ in rows]
    lengths = [min(limit, length) for _, limit, length in rows]
    steps, use = run(SlotScheduler(works, grid), lengths)
    assert steps == run(SlotScheduler(works, grid), lengths)[0]
    assert use.prompts == len(rows)
    assert sorted(index for step in steps if isinstance(step, Prefill) for index in step.works) == [*range(len(rows))]
