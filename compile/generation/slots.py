"""Which request sits in which slot of a static decode batch, and what runs next. Pure: sees lengths, not tokens."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

IDLE_SHARE = 0.05
"""Share of the slots that may wait for company while prompts are left, so that prefills of several prompts fill up."""


@dataclass(frozen=True, slots=True)
class SlotGrid:
    """The static sizes of one artifact's two graphs."""

    slots: int
    """Rows of the decode graph."""
    prompt_length: int
    """Tokens per prompt in the prefill graph, padding included."""
    positions: int
    """Tokens that a slot's cache holds: prompt and new ones."""
    prefill_rows: int = 1
    """Prompts per prefill. One number, because a graph of another batch could round a row's logits differently."""

    def __post_init__(self) -> None:
        if not 1 <= self.prefill_rows <= self.slots or not 1 <= self.prompt_length < self.positions:
            raise ValueError(
                f"{self} is not a grid: it needs 1 to `slots` prefill rows and more positions than prompt tokens"
            )


@dataclass(frozen=True, slots=True)
class Work:
    """What the scheduler must know of one request."""

    prompt_tokens: int
    new_tokens: int
    """The most it may generate."""
    expected_tokens: float | None = None
    """How many it will probably generate, where something is known; it only decides who goes first."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """Run the prefill graph: prompt of `works[i]` into `slots[i]`; each gives its first new token."""

    slots: tuple[int, ...]
    works: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decode:
    """Run the decode graph: each slot's last token is fed at its position; slots that are not named compute nothing."""

    slots: tuple[int, ...]
    works: tuple[int, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SlotUse:
    """Counts of what ran, enough to derive every share."""

    prefills: int
    prefill_rows: int
    """Rows of all prefills, empty ones included."""
    prompts: int
    prompt_tokens: int
    prefill_slot_tokens: int
    """Tokens that the prefills computed, padding included."""
    decode_steps: int
    decode_slots: int
    """Slots of all decode steps, empty ones included."""
    decode_tokens: int
    """Slots that held a live request."""
    tail_steps: int
    """Decode steps after the last prompt was placed."""
    tail_tokens: int
    slots: int

    @property
    def occupancy(self) -> float:
        """Share of decode slots that held a live request; 1 when nothing was decoded."""
        return _share(self.decode_tokens, self.decode_slots)

    @property
    def occupancy_before_tail(self) -> float:
        """The same over the steps before the last prompt was placed."""
        return _share(self.decode_tokens - self.tail_tokens, self.decode_slots - self.tail_steps * self.slots)

    @property
    def prefill_padding(self) -> float:
        """Share of prefilled tokens that were padding."""
        return 1.0 - _share(self.prompt_tokens, self.prefill_slot_tokens)

    @property
    def wasted_slots(self) -> int:
        """Decode slots that computed nothing of use."""
        return self.decode_slots - self.decode_tokens

    def to_json(self) -> dict[str, int | float]:
        shares = ("occupancy", "occupancy_before_tail", "prefill_padding", "wasted_slots")
        return {**asdict(self), **{name: getattr(self, name) for name in shares}}


class SlotScheduler:
    """A state machine: `next` says what to run, `finish` says whose last token it brought. Same calls, same answers.

    Who is expected to take longest goes first (Graham's rule, so that no long row starts last). A slot that is free is
    refilled at once; with a prefill of several prompts, up to IDLE_SHARE of the slots wait until it is full.
    """

    def __init__(self, works: Sequence[Work], grid: SlotGrid) -> None:
        """Raises ValueError that names the request when it does not fit the grid."""
        for index, work in enumerate(works):
            check_work(index, work, grid)
        self.grid = grid
        self._works = works
        self._queue = sorted(range(len(works)), key=lambda index: _order(works[index], index), reverse=True)
        self._free = list(range(grid.slots))
        self._busy: dict[int, int] = {}
        self._generated = [0] * len(works)
        self._wait_for = min(grid.prefill_rows, 1 + int(IDLE_SHARE * grid.slots))
        self._pending: Prefill | Decode | None = None
        self._prefills = self._decodes = self._decoded = self._tail_steps = self._tail = 0

    def next(self) -> Prefill | Decode | None:
        """The next step; None when every request is finished. `finish` must answer each step before the next."""
        if self._pending is not None:
            raise RuntimeError("the last step was not answered by finish()")
        self._pending = self._prefill() or self._decode()
        return self._pending

    def finish(self, ended: Collection[int]) -> tuple[int, ...]:
        """Every slot of the last step got a token; those of `ended` got their last. Returns the slots freed, ascending.

        A request at its `new_tokens` is ended here too, so that no slot can run past its positions.
        """
        step, self._pending = self._pending, None
        if step is None:
            raise RuntimeError("finish() without a step")
        unknown = set(ended) - set(step.slots)
        if unknown:
            raise ValueError(f"slots {sorted(unknown)} were not part of the last step")
        freed = []
        for slot, index in zip(step.slots, step.works, strict=True):
            self._generated[index] += 1
            if slot in ended or self._generated[index] == self._works[index].new_tokens:
                freed.append(slot)
                del self._busy[slot]
                heapq.heappush(self._free, slot)
        return tuple(sorted(freed))

    def use(self) -> SlotUse:
        """What ran so far."""
        grid, waiting = self.grid, set(self._queue)
        placed = [work.prompt_tokens for index, work in enumerate(self._works) if index not in waiting]
        rows = self._prefills * grid.prefill_rows
        return SlotUse(
            prefills=self._prefills,
            prefill_rows=rows,
            prompts=len(placed),
            prompt_tokens=sum(placed),
            prefill_slot_tokens=rows * grid.prompt_length,
            decode_steps=self._decodes,
            decode_slots=self._decodes * grid.slots,
            decode_tokens=self._decoded,
            tail_steps=self._tail_steps,
            tail_tokens=self._tail,
            slots=grid.slots,
        )

    def _prefill(self) -> Prefill | None:
        count = min(len(self._queue), len(self._free), self.grid.prefill_rows)
        if count == 0 or (count < min(self._wait_for, len(self._queue)) and self._busy):
            return None
        works = tuple(self._queue.pop() for _ in range(count))
        slots = tuple(heapq.heappop(self._free) for _ in range(count))
        self._busy.update(zip(slots, works, strict=True))
        self._prefills += 1
        return Prefill(slots, works)

    def _decode(self) -> Decode | None:
        if not self._busy:
            return None
        slots = tuple(sorted(self._busy))
        works = tuple(self._busy[slot] for slot in slots)
        # The first new token came from the prefill; it is fed at the position after the prompt.
        positions = tuple(self._works[index].prompt_tokens + self._generated[index] - 1 for index in works)
        self._decodes += 1
        self._decoded += len(slots)
        if not self._queue:
            self._tail_steps += 1
            self._tail += len(slots)
        return Decode(slots, works, positions)


def _order(work: Work, index: int) -> tuple[float, int, int]:
    """Ascending in whom to take last; ties in the order given."""
    expected = work.new_tokens if work.expected_tokens is None else work.expected_tokens
    return -expected, -work.prompt_tokens, index


def check_work(index: int, work: Work, grid: SlotGrid) -> None:
    """Raises ValueError that names request `index` when it does not fit the grid."""
    if not 1 <= work.prompt_tokens <= grid.prompt_length:
        raise ValueError(
            f"request {index}: its prompt of {work.prompt_tokens} tokens does not fit prompts of 1 to "
            f"{grid.prompt_length}"
        )
    if work.new_tokens < 1 or work.prompt_tokens + work.new_tokens > grid.positions:
        raise ValueError(
            f"request {index}: {work.prompt_tokens} prompt and {work.new_tokens} new tokens do not fit the "
            f"{grid.positions} positions of a slot"
        )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
