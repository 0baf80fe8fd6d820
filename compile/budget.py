"""What a shape plan may spend beside seconds: graphs, the memory of one graph, and seconds of compiling. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compile.shapes import Shape


@dataclass(frozen=True, slots=True)
class GraphBudget:
    """Hard limits of a plan. A worker has one graph loaded at a time, so memory limits each graph by itself."""

    graphs: int
    memory_bytes: int | None = None
    compile_s: float | None = None
    """Seconds of compiling all graphs of a plan, wherever they are compiled."""

    def affordable_graphs(self, compile_s: float) -> int:
        """How many graphs may be planned when each compiles in so many seconds. Raises ValueError for none."""
        if self.compile_s is None or compile_s <= 0:
            return self.graphs
        affordable = int(self.compile_s // compile_s)
        if affordable < 1:
            raise ValueError(
                f"one graph compiles in about {compile_s:.1f} s, which is over max_compile_seconds: {self.compile_s:g}"
            )
        return min(self.graphs, affordable)

    def fitting(
        self, candidates: Sequence[Shape], memory_of: Callable[[Shape], int], max_length: int
    ) -> Sequence[Shape]:
        """The candidates that fit into memory. Raises ValueError when none holds a row of `max_length` tokens."""
        if self.memory_bytes is None:
            return candidates
        found = [shape for shape in candidates if memory_of(shape) <= self.memory_bytes]
        if not any(shape.length >= max_length for shape in found):
            longest = [shape for shape in candidates if shape.length >= max_length]
            least = min((memory_of(shape) for shape in longest), default=0)
            raise ValueError(
                f"a graph for {max_length} tokens takes about {least / 2**20:.0f} MiB, which is over max_memory_mb: "
                f"{self.memory_bytes // 2**20}; raise it, or lower max_length"
            )
        return found
