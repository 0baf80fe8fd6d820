"""Decoder targets: toolchains that compile a causal language model for static slots, or bring their own engine."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from compile.errors import ShapeMismatch
from compile.generation.requests import Completion, Request, TextRules
from compile.generation.sampling import Sampling
from compile.generation.slots import SlotGrid
from compile.neuron_settings import NeuronSettings
from compile.shapes import Shape
from compile.targets import AnyTarget
from compile.toolchains import decoder_module


class StaticDecoder(Protocol):
    """A loaded artifact with two static graphs, prefill and decode, and a cache per slot. One thread.

    What a row gets depends on its own tokens alone, to the last bit: not on its slot, its neighbours or who sat there
    before. NaN and infinity are returned as they are and stay in their row.
    """

    grid: SlotGrid
    vocab_size: int

    def prefill(self, slots: Sequence[int], prompts: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        """Put 1 to `prefill_rows` prompts into slots, over whatever is there; logits after each, float32 (n, vocab).

        Raises ShapeMismatch for more prompts or longer ones, DeviceError when execution fails.
        """

    def decode(self, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """Feed every slot its token at its position; logits after each, float32 (slots, vocab).

        Both arrays are int64 (slots,). An idle slot is fed 0 at 0. Raises ShapeMismatch, DeviceError.
        """


@runtime_checkable
class Generator(Protocol):
    """Turns requests into completions; may hold a scheduler of its own."""

    def generate(self, requests: Sequence[Request], sampling: Sampling, text: TextRules) -> Iterator[Completion]:
        """Each request exactly once, in the order in which they finish. Raises ValueError for what does not fit."""


class DecoderTarget(AnyTarget[StaticDecoder | Generator], Protocol):
    """As compile.targets.Target, for artifacts of one number of new tokens: a Shape is (decode slots, prompt length).

    `new_tokens` is among `options`, hence in the artifact's key.
    """

    new_tokens: int
    independent: bool
    """Whether a row's tokens are promised not to depend on its company (P2). Where False, it is measured and told."""

    def unsupported(self, sampling: Sampling, text: TextRules) -> str | None:
        """Which of these settings it does not have, in a sentence; None when it has all."""


def load_decoder_target(name: str, new_tokens: int, settings: NeuronSettings | None = None) -> DecoderTarget:
    """The target of that name for texts of up to `new_tokens`, with a job's settings where it has any.

    Raises ValueError that lists the valid names.
    """
    make = importlib.import_module(decoder_module(name)).make
    target: DecoderTarget = make(new_tokens) if settings is None else make(new_tokens, settings)
    return target


def grid_of(shape: Shape, new_tokens: int, prefill_rows: int = 1) -> SlotGrid:
    """The slots that an artifact of that shape has."""
    return SlotGrid(shape.batch, shape.length, shape.length + new_tokens, prefill_rows)


def check_prefill(grid: SlotGrid, slots: Sequence[int], prompts: Sequence[NDArray[np.int64]]) -> None:
    """Raises ShapeMismatch unless the prompts fit the prefill graph and the slots exist."""
    lengths = [len(prompt) for prompt in prompts]
    if not 1 <= len(prompts) <= grid.prefill_rows or len(prompts) != len(slots):
        raise ShapeMismatch(f"{len(prompts)} prompts for {len(slots)} slots; this graph takes 1 to {grid.prefill_rows}")
    if min(lengths) < 1 or max(lengths) > grid.prompt_length:
        raise ShapeMismatch(f"prompts of {lengths} tokens; this graph takes 1 to {grid.prompt_length}")
    if len(set(slots)) != len(slots) or not all(0 <= slot < grid.slots for slot in slots):
        raise ShapeMismatch(f"slots {list(slots)}; they must be distinct and below {grid.slots}")


def check_decode(grid: SlotGrid, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
    """Raises ShapeMismatch unless there is one token per slot, at a position that its cache has."""
    if tokens.shape != (grid.slots,) or positions.shape != (grid.slots,):
        raise ShapeMismatch(f"tokens {tokens.shape} and positions {positions.shape}; both must be ({grid.slots},)")
    if int(positions.min()) < 0 or int(positions.max()) >= grid.positions:
        raise ShapeMismatch(f"positions {int(positions.min())} to {int(positions.max())}; a slot has {grid.positions}")


def padded_prompts(grid: SlotGrid, prompts: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token ids (prefill rows, prompt length), right-padded, and lengths (prefill rows,); missing rows are one token 0.

    A row is padded with its own first token: no token id is sure to be harmless in every model, but this one is there.
    """
    ids = np.zeros((grid.prefill_rows, grid.prompt_length), np.int64)
    lengths = np.ones(grid.prefill_rows, np.int64)
    for row, prompt in enumerate(prompts):
        ids[row] = prompt[0]
        ids[row, : len(prompt)] = prompt
        lengths[row] = len(prompt)
    return ids, lengths
