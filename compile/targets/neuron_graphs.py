"""The two graphs of a NeuronModelForCausalLM, prefill of one prompt and decode of all slots, with their traps closed.

optimum-neuron cuts a prompt that is longer than the prefill graph, and writes past a slot's end, without a word; both
are refused here. Its own padding of prompts and of slots is never used: it marks the end of a two-token prompt twice,
and a decode step that lacks slots writes into theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compile.errors import DeviceError
from compile.generation.slots import SlotGrid
from compile.targets.decoders import check_decode, check_prefill, padded_prompts
from compile.targets.neuron import told

Params = tuple[float, float, float]
"""top_k, top_p, temperature: what both graphs take per row, and use only where they sample themselves."""
GREEDY: Params = (1.0, 1.0, 1.0)


class NeuronGraphs:
    """A loaded export. What comes out is logits, float32 (rows, 1, vocab), or tokens, int (rows,), as it was exported.

    `prompt_places` is the length of the prefill graph: the grid's prompt length, or more.
    """

    def __init__(self, grid: SlotGrid, model: Any, prompt_places: int) -> None:
        self.grid = grid
        self.vocab_size = int(model.vocab_size)
        self._model = model
        self._places = prompt_places

    def prefill(
        self, slots: Sequence[int], prompts: Sequence[NDArray[np.int64]], params: Sequence[Params] = (GREEDY,)
    ) -> NDArray[Any]:
        """Put one prompt into its slot. Raises ShapeMismatch, DeviceError."""
        check_prefill(self.grid, slots, prompts)
        ids, lengths = padded_prompts(self.grid, prompts)
        # Every further place is the prompt's first token at its position, 0: the graph takes the last token to be
        # where the position is largest, and a padding of 1, as optimum-neuron's, ties with it for prompts of 2 tokens.
        padded = np.full((1, self._places), ids[0, 0])
        padded[:, : ids.shape[1]] = ids
        positions = np.arange(self._places)[None]
        return self._run(padded, np.where(positions < lengths[:, None], positions, 0), np.array(slots), params)

    def decode(
        self, tokens: NDArray[np.int64], positions: NDArray[np.int64], params: Sequence[Params] | None = None
    ) -> NDArray[Any]:
        """One token for every slot, each by its own params: a step with fewer would write into those it leaves out.

        Raises ShapeMismatch, DeviceError.
        """
        check_decode(self.grid, tokens, positions)
        return self._run(
            tokens[:, None], positions[:, None], np.arange(self.grid.slots), params or [GREEDY] * len(tokens)
        )

    def _run(
        self, ids: NDArray[np.int64], positions: NDArray[np.int64], slots: NDArray[np.int64], params: Sequence[Params]
    ) -> NDArray[Any]:
        import torch

        try:
            with torch.inference_mode():
                found = self._model(
                    *(torch.from_numpy(part.astype(np.int32)) for part in (ids, positions, slots)),
                    sampling_params=torch.tensor(list(params), dtype=torch.float32),
                )
        except (RuntimeError, torch.jit.Error) as error:  # the second is what TorchScript itself raises
            raise DeviceError(f"neuron: {self.grid}: {told(error)}") from error
        return np.asarray(found.numpy())
