"""Which AWS Neuron devices are supported with which software, and how that was tested: a table for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass

STACK = "optimum-neuron 0.4.5, torch-neuronx 2.8.0, neuronx-cc 2.21, Python 3.11"


@dataclass(frozen=True, slots=True)
class Support:
    """One device and task."""

    device: str
    task: str
    stack: str
    """What it needs; starts with `none` where it is not supported."""
    tested: str
    """`device`, `double` (the tests' stand-in for the SDK, which says nothing about speed or numbers) or `not`."""
    future: str
    """What AWS says of the stack's end (its documentation, August 2026)."""


_FROZEN = "torch/XLA inference is in maintenance: frozen on torch 2.9"
_NXD = "new models come as NxD and as a vLLM plugin, for Trn2 and newer"

MATRIX = (
    Support("Inf1", "any", "none: optimum-neuron 0.4.5 compiles for inf2, trn1, trn1n and trn2", "not", ""),
    Support("Inf2", "classify", STACK, "double", _FROZEN),
    Support("Inf2", "generate", STACK, "double", f"{_FROZEN}; {_NXD}"),
    Support("Trn1", "classify", STACK, "double", _FROZEN),
    Support("Trn1", "generate", STACK, "double", f"{_FROZEN}; {_NXD}"),
    Support("Trn2", "classify", STACK, "not", ""),
    Support("Trn2", "generate", STACK, "not", _NXD),
)


def matrix() -> list[dict[str, str]]:
    """As plain data."""
    return [asdict(row) for row in MATRIX]
