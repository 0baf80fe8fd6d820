"""Which waiting worker gets which cores next, and who gives way for it: fair between the jobs of a host. Pure.

The job that holds the fewest cores is served first, of equals the one that has waited longest. A worker whose turn is
over gives way to a job that has no core at all, or that has less than its share: the cores it gives away leave its job
no worse off than that one. Where cores are free nobody gives way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

Group = tuple[int, ...]
"""Cores that one model copy takes together, neighbours in ascending order."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A worker in the queue."""

    name: str
    job: str
    arrived: float
    groups: tuple[Group, ...]
    """Those that it may run on, one of which it needs."""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Holding:
    """A worker that has cores."""

    job: str
    cores: Group
    since: float
    """Seconds of the host's monotonic clock."""
    turn_s: float
    """Seconds from `since` for which it need not give way."""
    leaving: bool = False
    """It gives way as soon as its work in hand is done."""
    pid: int = 0


@dataclass(slots=True)
class Allocation:
    """What comes next."""

    granted: dict[str, Group] = field(default_factory=dict)
    """Waiting worker -> free cores that it may take now."""
    asked: dict[Holding, str] = field(default_factory=dict)
    """Who should give way -> for which job."""


def allocate(waiting: Sequence[Waiting], holding: Sequence[Holding], now: float) -> Allocation:
    """Serve the queue in its fair order: each worker is promised cores, which no later one is given."""
    found = Allocation()
    promised: set[int] = set()
    held = Counter[str]()
    for holder in holding:
        held[holder.job] += 0 if holder.leaving else len(holder.cores)
    rest = list(waiting)
    while rest:
        worker = min(rest, key=lambda worker: (held[worker.job], worker.arrived, worker.name))
        rest.remove(worker)
        choices = [_choice(worker, group, holding, found, held, now) for group in worker.groups]
        choices = [choice for choice in choices if choice.possible and not promised & set(choice.group)]
        if not choices:
            continue
        best = min(choices, key=_Choice.order)
        promised |= set(best.group)
        if best.wait:
            continue  # some of its cores are free: kept for it, or a wide copy would never find all of them free
        held[worker.job] += len(best.group)
        for holder in best.giving:
            held[holder.job] -= len(holder.cores)
            found.asked[holder] = worker.job
        if best.free == len(best.group):
            found.granted[worker.name] = best.group
    return found


@dataclass(frozen=True, slots=True)
class _Choice:
    """What a worker taking a group would mean."""

    group: Group
    free: int
    giving: tuple[Holding, ...]
    """Who would have to give way that has not been asked yet."""
    wait: bool
    """Whether one of them need not."""

    @property
    def possible(self) -> bool:
        return not self.wait or self.free > 0

    def order(self) -> tuple[bool, bool, int, float, Group]:
        """Best first: free, else who gives way anyway, then with the least disturbance of whom had the longest turn."""
        longest = min((holder.since for holder in self.giving), default=0.0)
        return self.wait, self.free < len(self.group), len(self.giving), longest, self.group


def _choice(
    worker: Waiting, group: Group, holding: Sequence[Holding], found: Allocation, held: Counter[str], now: float
) -> _Choice:
    owners = [holder for holder in holding if set(holder.cores) & set(group)]
    giving = tuple(holder for holder in owners if not holder.leaving and holder not in found.asked)
    taken = {core for holder in owners for core in holder.cores}
    wait = not all(_gives_way(holder, worker, len(group), held, now) for holder in giving)
    return _Choice(group, len(set(group) - taken), giving, wait)


def _gives_way(holder: Holding, worker: Waiting, wanted: int, held: Counter[str], now: float) -> bool:
    if holder.job == worker.job or now - holder.since < holder.turn_s:
        return False
    theirs, ours = held[worker.job], held[holder.job]
    return theirs == 0 or theirs + wanted <= ours - len(holder.cores)
