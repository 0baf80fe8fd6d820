"""Decoder target `torch`: PyTorch eager on one CPU thread, with a cache of static slots. Its fp32 is the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compile.errors import ArtifactError, CompileError, DeviceError, ModelError
from compile.generation.requests import TextRules
from compile.generation.sampling import Sampling
from compile.shapes import Shape
from compile.targets import EncoderBatch
from compile.targets import torch as encoder_target
from compile.targets.causal import attention_windows, decoder_candidates, load_causal, rope_limit
from compile.targets.decoders import check_decode, check_prefill, grid_of, padded_prompts


@dataclass(frozen=True, slots=True)
class TorchDecoderTarget:
    """See compile.targets.decoders.DecoderTarget. An artifact is the model itself; the sizes are enforced here."""

    new_tokens: int
    prefill_rows: int = 1
    name: str = "torch"
    precisions: tuple[str, ...] = ("fp32", "bf16")
    calibrated: tuple[str, ...] = ()
    on_cpu: bool = True
    independent: bool = True

    def unavailable(self) -> str | None:
        return encoder_target.target.unavailable()

    def default_precision(self) -> str:
        return "fp32"

    def supports(self, precision: str) -> str | None:
        return encoder_target.target.supports(precision)

    def unsupported(self, sampling: Sampling, text: TextRules) -> str | None:
        return None

    def versions(self) -> dict[str, str]:
        return encoder_target.target.versions()

    def options(self, precision: str) -> dict[str, str]:
        return {"new_tokens": str(self.new_tokens), "prefill_rows": str(self.prefill_rows), "graphs": "slots"}

    def machine(self) -> str:
        return encoder_target.target.machine()

    def candidates(self, max_length: int) -> list[Shape]:
        return decoder_candidates(max_length, self.new_tokens)

    def prepare(self, model_dir: Path, work_dir: Path, precision: str, calibration: Sequence[EncoderBatch]) -> Path:
        try:
            attention_windows(model_dir)  # an architecture that has no slots is reported here, not once per shape
        except ModelError as error:
            raise CompileError(f"torch: {error}") from error
        return model_dir

    def compile(self, prepared_dir: Path, shape: Shape, precision: str, out_dir: Path) -> None:
        limit = rope_limit(prepared_dir)
        if limit is not None and shape.length + self.new_tokens > limit:
            raise CompileError(
                f"torch: {shape} with {self.new_tokens} new tokens: this model changes all positions of a batch when "
                f"one row passes {limit} tokens, so that rows would depend on their neighbours; plan at most {limit}"
            )
        encoder_target.target.compile(prepared_dir, shape, precision, out_dir)

    def load(self, artifact_dir: Path, shape: Shape, precision: str) -> TorchDecoder:
        try:
            model = load_causal(artifact_dir, precision)
            return TorchDecoder(shape, self.new_tokens, self.prefill_rows, model, attention_windows(artifact_dir))
        except ModelError as error:
            raise ArtifactError(f"torch: {shape}: {error}") from error


class TorchDecoder:
    """See compile.targets.decoders.StaticDecoder."""

    def __init__(
        self, shape: Shape, new_tokens: int, prefill_rows: int, model: Any, windows: Sequence[int | None]
    ) -> None:
        self.grid = grid_of(shape, new_tokens, prefill_rows)
        self.vocab_size = int(model.config.get_text_config().vocab_size)
        self._model = model
        self._windows = windows
        self._cache = _slot_cache(len(windows), self.grid.slots, self.grid.positions)

    def prefill(self, slots: Sequence[int], prompts: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        import torch

        check_prefill(self.grid, slots, prompts)
        ids, lengths = padded_prompts(self.grid, prompts)
        columns = torch.arange(self.grid.prompt_length)
        ends = torch.from_numpy(lengths)
        self._cache.write = _PromptWrite(torch.tensor(slots), columns < ends[:, None])
        positions = columns.expand(self.grid.prefill_rows, -1)
        logits = self._forward(torch.from_numpy(ids), positions, columns, keep=ends - 1)
        # One list of places is kept for all rows, so a row's own place lies on the diagonal.
        rows = torch.arange(len(prompts))
        return np.array(logits[rows, rows].float().numpy(), np.float32)

    def decode(self, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float32]:
        import torch

        check_decode(self.grid, tokens, positions)
        places = torch.from_numpy(positions)
        self._cache.write = _StepWrite(torch.arange(self.grid.slots), places)
        columns = torch.arange(self.grid.positions)
        logits = self._forward(torch.from_numpy(tokens)[:, None], places[:, None], columns, keep=torch.tensor([0]))
        return np.array(logits[:, 0].float().numpy(), np.float32)

    def _forward(self, ids: Any, positions: Any, columns: Any, keep: Any) -> Any:
        """Logits (rows, kept places, vocab)."""
        import torch

        try:
            with torch.inference_mode():
                return self._model(
                    input_ids=ids,
                    position_ids=positions,
                    attention_mask=self._masks(positions, columns),
                    past_key_values=self._cache,
                    use_cache=True,
                    logits_to_keep=keep,
                ).logits
        except (RuntimeError, IndexError) as error:
            raise DeviceError(f"torch: {self.grid}: {error}") from error

    def _masks(self, positions: Any, columns: Any) -> Any:
        """What each place may look at, additive (rows, 1, places, columns); per kind of layer where there are two."""
        kinds = {_kind(window): self._mask(positions, columns, window) for window in set(self._windows)}
        return kinds if len(kinds) > 1 else next(iter(kinds.values()))

    def _mask(self, positions: Any, columns: Any, window: int | None) -> Any:
        import torch

        places = positions[:, None, :, None]
        seen = columns <= places
        if window is not None:
            seen = seen & (columns > places - window)
        dtype = self._model.dtype
        return torch.zeros((), dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)


def _kind(window: int | None) -> str:
    return "full_attention" if window is None else "sliding_attention"


@dataclass(frozen=True, slots=True)
class _PromptWrite:
    """Prompts that come in: slots (prompts,), and which places hold tokens, bool (prefill rows, prompt length)."""

    slots: Any
    real: Any

    def store(self, kept: Any, states: Any) -> Any:
        """Fill the slots anew, zero beyond the prompt: a mask hides what is left of others, unless it is NaN."""
        count, places = len(self.slots), states.shape[2]
        kept[self.slots] = 0
        kept[self.slots, :, :places] = states[:count].masked_fill(~self.real[:count, None, :, None], 0)
        return states


@dataclass(frozen=True, slots=True)
class _StepWrite:
    """One token per slot: slots (slots,) and positions (slots,)."""

    slots: Any
    positions: Any

    def store(self, kept: Any, states: Any) -> Any:
        kept[self.slots, :, self.positions] = states[:, :, 0]
        return kept


def _slot_cache(layers: int, slots: int, positions: int) -> Any:
    """A transformers cache whose rows are slots, each at a position of its own; `write` says where states go."""
    import torch
    from transformers.cache_utils import Cache, CacheLayerMixin

    class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
        is_compileable = False
        is_sliding = False

        def __init__(self) -> None:
            super().__init__()
            self.cache: Any = None

        def lazy_initialization(self, key_states: Any) -> None:
            _, heads, _, size = key_states.shape
            self.keys = torch.zeros((slots, heads, positions, size), dtype=key_states.dtype)
            self.is_initialized = True

        def update(self, key_states: Any, value_states: Any, cache_kwargs: Any = None) -> tuple[Any, Any]:
            if not self.is_initialized:
                self.lazy_initialization(key_states)
                self.values = torch.zeros((*self.keys.shape[:3], value_states.shape[3]), dtype=value_states.dtype)
            write = self.cache.write
            return write.store(self.keys, key_states), write.store(self.values, value_states)

        def get_mask_sizes(self, cache_position: Any) -> tuple[int, int]:
            return positions, 0

        def get_seq_length(self) -> int:
            return 0

        def get_max_cache_shape(self) -> int:
            return positions

    class SlotCache(Cache):  # type: ignore[misc]
        write: Any = None

    cache = SlotCache(layers=[SlotLayer() for _ in range(layers)])
    for layer in cache.layers:
        layer.cache = cache
    return cache


def make(new_tokens: int) -> TorchDecoderTarget:
    """The target for texts of up to that many new tokens."""
    return TorchDecoderTarget(new_tokens)
