"""Static slots on NeuronCores whose tokens are chosen on the host: the graphs give logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from compile.targets.neuron_graphs import NeuronGraphs


class NeuronSlots:
    """See compile.targets.decoders.StaticDecoder.

    A prefill writes a slot's first `prompt_length` places; what a former text left beyond them is hidden by a mask,
    unless it is NaN, for zero times NaN is NaN. So places that were written beside NaN are written again, from numbers,
    before the next text reads them.
    """

    def __init__(self, graphs: NeuronGraphs, layers: int) -> None:
        self.grid = graphs.grid
        self.vocab_size = graphs.vocab_size
        self._graphs = graphs
        self._layers = layers
        self._stained: dict[int, set[int]] = {slot: set() for slot in range(self.grid.slots)}
        """Per slot, places beyond the prompt's that may hold NaN."""

    def prefill(self, slots: Sequence[int], prompts: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        logits = self._logits(self._graphs.prefill(slots, prompts))
        if self._stained[slots[0]] and not np.isnan(logits).any():
            self._wash(slots[0])
        return logits

    def decode(self, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float32]:
        logits = self._logits(self._graphs.decode(tokens, positions))
        for slot in np.flatnonzero(np.isnan(logits).any(axis=1)).tolist():
            if positions[slot] >= self.grid.prompt_length:
                self._stained[slot].add(int(positions[slot]))
        return logits

    def _wash(self, slot: int) -> None:
        """Feed token 0 at each stained place, once per layer: the first pass leaves the first layer clean, and so on.

        The pass after the last one reads what was written. Other slots are fed at their last place, which no text
        reads, for the token after it would have no place.
        """
        places = sorted(self._stained[slot])
        for _ in range(self._layers + 1):
            for place in places:
                positions = np.full(self.grid.slots, self.grid.positions - 1)
                positions[slot] = place
                logits = self.decode(np.zeros(self.grid.slots, np.int64), positions)
        if not np.isnan(logits[slot]).any():
            self._stained[slot].clear()

    def _logits(self, found: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.array(found[:, -1, : self.vocab_size], np.float32)
