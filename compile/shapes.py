"""Static shapes and the shape plan: which `(batch, length)` graphs exist and which one a row's length goes to."""

from __future__ import annotations

import bisect
import hashlib
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """A static graph shape. Order is by length, then batch."""

    length: int
    """Tokens per row, padding included."""
    batch: int
    """Rows per execution."""

    def __post_init__(self) -> None:
        if self.length < 1 or self.batch < 1:
            raise ValueError(f"a shape needs a batch and a length of at least 1, not {self.batch}x{self.length}")

    @property
    def slot_tokens(self) -> int:
        """Tokens that one execution computes, padding included."""
        return self.batch * self.length

    def __str__(self) -> str:
        return f"{self.batch}x{self.length}"

    @classmethod
    def parse(cls, text: str) -> Shape:
        """`"16x128"` -> batch 16, length 128. Raises ValueError for anything else."""
        batch, times, length = text.partition("x")
        if not times or not batch.isdecimal() or not length.isdecimal():
            raise ValueError(f"{text!r} is not a shape; write BATCHxLENGTH, for example 16x128")
        return cls(length=int(length), batch=int(batch))


@dataclass(frozen=True, slots=True)
class ShapePlan:
    """Shapes ascending by length, no length twice, with the seconds one batch of each is expected to take."""

    shapes: tuple[Shape, ...]
    seconds: tuple[float, ...]
    """Predicted seconds of one execution, per shape."""
    measured: tuple[bool, ...]
    """Whether the seconds were measured on this machine kind (True) or come from the fitted cost model."""

    def __post_init__(self) -> None:
        lengths = [shape.length for shape in self.shapes]
        if not lengths or lengths != sorted(set(lengths)):
            raise ValueError(f"a plan needs shapes of ascending, distinct lengths, not {lengths}")
        if not len(self.shapes) == len(self.seconds) == len(self.measured):
            raise ValueError("a plan needs one cost and one measured flag per shape")

    @property
    def max_length(self) -> int:
        return self.shapes[-1].length

    def index_for(self, length: int) -> int:
        """Index of the shortest shape that holds `length` tokens. Raises ValueError when none does."""
        if length > self.max_length:
            raise ValueError(f"{length} tokens exceed the plan's longest shape, {self.shapes[-1]}")
        return bisect.bisect_left([shape.length for shape in self.shapes], length)

    @property
    def digest(self) -> str:
        """Identity of the shapes alone: costs may be measured again without changing which graphs run."""
        text = ",".join(str(shape) for shape in self.shapes)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {
            "shapes": [str(shape) for shape in self.shapes],
            "seconds": list(self.seconds),
            "measured": list(self.measured),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ShapePlan:
        return cls(
            shapes=tuple(Shape.parse(text) for text in data["shapes"]),
            seconds=tuple(float(value) for value in data["seconds"]),
            measured=tuple(bool(value) for value in data["measured"]),
        )


def canonical_json(data: Any) -> bytes:
    """One byte string per value: sorted keys, no spaces, UTF-8. What digests are taken of."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
