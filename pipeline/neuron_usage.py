"""What neuron-monitor says of some NeuronCores: busy seconds, device memory, executions and errors. Pure.

The format is that of AWS's Neuron Monitor User Guide: one JSON object per line, any section of which may be missing.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

CONFIG = {
    "period": "5s",
    "neuron_runtimes": [
        {
            "tag_filter": ".*",
            "metrics": [{"type": "neuroncore_counters"}, {"type": "memory_used"}, {"type": "execution_stats"}],
        }
    ],
    "system_metrics": [],
}
"""What neuron-monitor is asked for."""
_FAILED = ("completed_with_err", "completed_with_num_err", "timed_out", "incorrect_input", "failed_to_queue")


@dataclass(slots=True)
class Usage:
    """Sums over the reports of a stretch of time, of the cores of one worker."""

    cores: Collection[int]
    pids: Collection[int] = ()
    """Processes whose reports count although none of the cores was active."""
    reports: int = 0
    unreadable: int = 0
    """Lines that are no report."""
    seconds: float = 0.0
    """That the reports with core counters cover."""
    busy_s: Counter[int] = field(default_factory=Counter)
    """Core -> seconds in which it was busy."""
    memory_bytes: Counter[int] = field(default_factory=Counter)
    """Core -> most device memory at any time."""
    device_memory_bytes: int = 0
    """Most at any time, of all cores together."""
    completed: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Kind of error, as neuron-monitor names it, -> executions; only those that happened."""

    def add(self, line: str) -> None:
        """Take one line in, whatever it is."""
        try:
            report = json.loads(line)
        except (ValueError, RecursionError):
            report = None
        if not isinstance(report, dict):
            self.unreadable += 1
            return
        self.reports += 1
        for pid, groups in _runtimes(report):
            counters = _section(groups, "neuroncore_counters")
            usage = _core_numbers(_mapping(counters, "neuroncores_in_use"))
            runtime = _mapping(_section(groups, "memory_used"), "neuron_runtime_used_bytes")
            memory = _core_numbers(_mapping(_mapping(runtime, "usage_breakdown"), "neuroncore_memory_usage"))
            if pid in self.pids or set(self.cores) & {*usage, *memory}:
                self._add_cores(_number(counters.get("period")), usage, memory)
                self.device_memory_bytes = max(self.device_memory_bytes, int(_number(runtime.get("neuron_device"))))
                self._add_executions(_section(groups, "execution_stats"))

    def _add_cores(self, period_s: float, usage: dict[int, Any], memory: dict[int, Any]) -> None:
        self.seconds += period_s
        for core in self.cores:
            percent = min(_number(_mapping(usage, core).get("neuroncore_utilization")), 100.0)
            self.busy_s[core] += percent / 100 * period_s  # type: ignore[assignment]
            used = int(sum(map(_number, _mapping(memory, core).values())))
            self.memory_bytes[core] = max(self.memory_bytes[core], used)

    def _add_executions(self, stats: dict[str, Any]) -> None:
        summary = _mapping(stats, "execution_summary")
        self.completed += int(_number(summary.get("completed")))
        failed = {name: summary.get(name) for name in _FAILED} | _mapping(stats, "error_summary")
        for name, count in failed.items():
            if _number(count) >= 1:
                self.errors[str(name)] += int(_number(count))

    def event(self) -> dict[str, Any]:
        """Fields of an event: sums, and the mean over the cores of the busy seconds."""
        return {
            "reports": self.reports,
            "unreadable": self.unreadable,
            "monitored_s": round(self.seconds, 3),
            "busy_s": round(sum(self.busy_s.values()) / len(self.cores), 3),
            "device_memory_bytes": self.device_memory_bytes,
            "completed": self.completed,
            "errors": dict(self.errors),
            "cores": [
                {"core": core, "busy_s": round(self.busy_s[core], 3), "device_memory_bytes": self.memory_bytes[core]}
                for core in self.cores
            ],
        }


def _runtimes(report: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Process id and metric groups of each Neuron application that could be looked at."""
    runtimes = report.get("neuron_runtime_data")
    for runtime in runtimes if isinstance(runtimes, list) else ():
        if isinstance(runtime, dict) and not runtime.get("error"):
            yield int(_number(runtime.get("pid"))), _mapping(runtime, "report")


def _section(groups: dict[str, Any], name: str) -> dict[str, Any]:
    """A metric group; empty when it is missing or could not be collected."""
    found = _mapping(groups, name)
    return {} if found.get("error") else found


def _mapping(value: dict[Any, Any], key: Any) -> dict[Any, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _core_numbers(value: dict[Any, Any]) -> dict[int, Any]:
    return {int(key): item for key, item in value.items() if str(key).isdecimal()}


def _number(value: Any) -> float:
    """A finite number from 0; whatever else stands there counts as 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    try:
        number = float(value)
    except OverflowError:
        return 0.0
    return number if math.isfinite(number) and number > 0 else 0.0
