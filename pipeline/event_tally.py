"""What the report needs of a run's event log: the steps' events whole, of the shards' only what is added up."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class ShardEvent:
    """One shard's result: a long night has a hundred thousand, so they are small."""

    shape: str
    rows: int
    batches: int
    slot_tokens: int
    real_tokens: int
    started: float
    load_s: float
    execute_s: float
    cpu_s: float
    created: bool
    texts: int = 0
    """Of a generating shard: samples of all its rows."""
    generated_tokens: int = 0
    decode_slots: int = 0
    """Slots of all decode steps of a generating shard; 0 where its engine does not tell."""
    decode_tokens: int = 0
    """Those that held a text."""
    first_token_steps: int = 0
    """Sum over its texts."""
    last_token_steps: int = 0

    @classmethod
    def of(cls, event: dict[str, Any]) -> ShardEvent:
        own = {item.name: event[item.name] for item in fields(cls) if item.name in event}
        return cls(**(own | {"shape": sys.intern(event["shape"])}))


@dataclass(slots=True)
class DeviceUsage:
    """Sums of the events `neuron` of one copy's cores."""

    monitored_s: float = 0.0
    busy_s: float = 0.0
    memory_bytes: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, event: dict[str, Any]) -> None:
        self.monitored_s += event["monitored_s"]
        self.busy_s += event["busy_s"]
        self.memory_bytes = max(self.memory_bytes, event["device_memory_bytes"])
        self.errors.update(event["errors"])


class EventTally:
    """Takes events in any order."""

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self.steps: list[dict[str, Any]] = []
        """Events of whole steps, in no order."""
        self._best: dict[int, ShardEvent] = {}
        self.attempts = 0
        """Events of shards: more than there are shards when some were done again."""
        self.busy_s: dict[tuple[str, int], float] = defaultdict(float)
        """Seconds of executing batches, per (host, core), repeated shards included."""
        self.shards_done: dict[tuple[str, int], int] = defaultdict(int)
        self.devices: dict[tuple[str, int], DeviceUsage] = defaultdict(DeviceUsage)
        """What neuron-monitor saw, per (host, first core of a copy)."""
        for event in events:
            if event["event"] == "shard":
                self._add(event)
            elif event["event"] == "neuron":
                self.devices[event["host"], event["core"]].add(event)
            else:
                self.steps.append(event)

    def _add(self, event: dict[str, Any]) -> None:
        self.attempts += 1
        core = (event["host"], event["core"])
        self.busy_s[core] += event["execute_s"]
        self.shards_done[core] += 1
        found, known = ShardEvent.of(event), self._best.get(event["shard"])
        # The one whose result counts, else the first: a result whose event was lost has none.
        if known is None or found.created or (not known.created and found.started < known.started):
            self._best[event["shard"]] = found

    @property
    def shards(self) -> list[ShardEvent]:
        """One per shard, in the order of their numbers."""
        return [self._best[index] for index in sorted(self._best)]
