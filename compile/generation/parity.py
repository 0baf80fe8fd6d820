"""Whether a loaded decoder writes what the fp32 model writes, and whether a text depends on its company."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compile.generation.record import GenerationParity
from compile.generation.requests import Completion, Request, TextRules
from compile.generation.sampling import Sampling
from compile.parity import Comparison, ParityRecord, Tolerance, compare, judge, labels_of
from compile.targets.causal import load_causal
from compile.targets.decoders import Generator, StaticDecoder

NEW_TOKENS = 12
"""Per prompt of a proof, or what the artifact has room for."""

Tokens = NDArray[np.int64]
Logits = NDArray[np.float32]


class CausalReference:
    """The fp32 PyTorch model, one row at a time, unpadded; its logits are computed without a cache. Loaded late."""

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = model_dir
        self._model: Any = None
        self._greedy: dict[tuple[bytes, int], Tokens] = {}

    def logits(self, tokens: Tokens, start: int) -> Logits:
        """Float32 (len(tokens) - start + 1, vocab): after the first `start` tokens, after one more, and so on."""
        import torch

        with torch.inference_mode():
            keep = len(tokens) - start + 1
            found = self._loaded()(
                input_ids=torch.from_numpy(tokens)[None], use_cache=False, logits_to_keep=keep
            ).logits
        return np.array(found[0].numpy(), np.float32)

    def greedy(self, prompt: Tokens, count: int) -> Tokens:
        """The `count` most probable next tokens, one by one; the model's end tokens are tokens as all others.

        With transformers' own cache: what these tokens are worth is asked of `logits`.
        """
        import torch

        key = (prompt.tobytes(), count)
        if key not in self._greedy:
            cache, ids, found = None, torch.from_numpy(prompt)[None], []
            with torch.inference_mode():
                for _ in range(count):
                    out = self._loaded()(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                    cache, ids = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)
                    found.append(int(ids))
            self._greedy[key] = np.array(found, np.int64)
        return self._greedy[key]

    def _loaded(self) -> Any:
        if self._model is None:
            self._model = load_causal(self._model_dir)
        return self._model


def prove_decoder(
    loaded: StaticDecoder | Generator,
    prompts: Sequence[Tokens],
    reference: CausalReference,
    tolerance: Tolerance,
    versions: dict[str, str],
    made_rows: int = 0,
    new_tokens: int = NEW_TOKENS,
) -> ParityRecord:
    """Prove what `DecoderTarget.load` returned; `new_tokens` is what the artifact has room for. Raises DeviceError."""
    if isinstance(loaded, Generator):
        count, top_k = min(NEW_TOKENS, new_tokens), int(getattr(loaded, "max_top_k", 0))
        return prove_engine(loaded, prompts, reference, tolerance, versions, made_rows, count, top_k)
    return prove_static(loaded, prompts, reference, tolerance, versions, made_rows)


def prove_static(
    decoder: StaticDecoder,
    prompts: Sequence[Tokens],
    reference: CausalReference,
    tolerance: Tolerance,
    versions: dict[str, str],
    made_rows: int = 0,
) -> ParityRecord:
    """Feed prompts and the reference's greedy texts through the slots in two arrangements, and compare all logits.

    Prompts are int64 (tokens,), each at most the grid's prompt length. Raises DeviceError.
    """
    count = min(NEW_TOKENS, decoder.grid.positions - decoder.grid.prompt_length)
    rows = [np.concatenate([prompt, reference.greedy(prompt, count)[:-1]]) for prompt in prompts]
    expected = [reference.logits(row, len(prompt)) for row, prompt in zip(rows, prompts, strict=True)]
    starts, order = [len(prompt) for prompt in prompts], list(range(len(rows)))
    first = _forced(decoder, rows, starts, order)
    # Backwards, so that slots and neighbours differ, and one by one, so that there are none.
    other = _forced(decoder, rows, starts, order[::-1])
    alone = _forced(decoder, rows, starts, order[:1])
    arrangements = [first, other, alone]
    moved = [
        index
        for index in order
        if len({found[index].tobytes() for found in arrangements if index in found}) > 1
        and np.isfinite(first[index]).all()
    ]
    found = compare(np.concatenate(expected), np.concatenate([first[index] for index in order]), "single_label")
    notes = GenerationParity(count, logits_seen=True, independent=not moved, promised=True)
    return _record(found, tolerance, prompts, versions, made_rows, len(moved), notes)


def prove_engine(
    engine: Generator,
    prompts: Sequence[Tokens],
    reference: CausalReference,
    tolerance: Tolerance,
    versions: dict[str, str],
    made_rows: int = 0,
    new_tokens: int = NEW_TOKENS,
    top_k: int = 0,
) -> ParityRecord:
    """Let an engine write greedily, ask the reference how good each of its choices was, and vary the company.

    `new_tokens` must fit the artifact, and `top_k`, among how many tokens is drawn, the engine. Raises DeviceError.
    """
    greedy = Sampling(max_new_tokens=new_tokens)
    sampled = Sampling(max_new_tokens=new_tokens, do_sample=True, top_k=top_k)
    requests = [Request(str(index), prompt) for index, prompt in enumerate(prompts)]
    together = _texts(engine, requests, greedy)
    moved: set[str] = set()
    for sampling in (greedy, sampled):
        whole = together if sampling is greedy else _texts(engine, requests, sampling)
        for group in (requests[::-1], requests[: len(requests) // 2], *([request] for request in requests[:4])):
            moved |= {row for row, one in _texts(engine, group, sampling).items() if one != whole[row]}
    failed = sum(one.failed for one in together.values())
    regrets = [_regret(reference, prompt, together[str(index)]) for index, prompt in enumerate(prompts)]
    found = _joined([regret for regret in regrets if regret is not None], failed)
    notes = GenerationParity(new_tokens, logits_seen=False, independent=not moved, promised=False)
    return _record(found, tolerance, prompts, versions, made_rows, len(moved), notes)


def _forced(
    decoder: StaticDecoder, rows: Sequence[Tokens], starts: Sequence[int], order: Sequence[int]
) -> dict[int, Logits]:
    """Logits of each row from its prompt's last token on: float32 (steps, vocab). All slots run at once."""
    grid = decoder.grid
    found: dict[int, Logits] = {}
    for at in range(0, len(order), grid.slots):
        group = order[at : at + grid.slots]
        lines: dict[int, list[Logits]] = {index: [] for index in group}
        for begin in range(0, len(group), grid.prefill_rows):
            some = group[begin : begin + grid.prefill_rows]
            logits = decoder.prefill(range(begin, begin + len(some)), [rows[index][: starts[index]] for index in some])
            for index, line in zip(some, logits, strict=True):
                lines[index].append(line)
        for step in range(max(len(rows[index]) - starts[index] for index in group)):
            tokens, positions = np.zeros((2, grid.slots), np.int64)
            for slot, index in enumerate(group):
                positions[slot] = starts[index] + step
                tokens[slot] = rows[index][positions[slot]]
            logits = decoder.decode(tokens, positions)
            for slot, index in enumerate(group):
                lines[index].append(logits[slot].copy())
        found |= {index: np.stack(part) for index, part in lines.items()}
    return found


def _texts(engine: Generator, requests: Sequence[Request], sampling: Sampling) -> dict[str, Completion]:
    found = {one.row_id: one for one in engine.generate(requests, sampling, TextRules())}
    # Sums of log probabilities differ in their last bits where tokens do not.
    return {
        row: Completion(one.row_id, one.sample, one.token_ids, one.finish_reason, one.prompt_tokens, 0.0)
        for row, one in found.items()
    }


def _regret(reference: CausalReference, prompt: Tokens, one: Completion) -> Comparison | None:
    """How far below the reference's best logit each chosen token's lies, given the text before it."""
    if not one.token_ids:
        return None
    chosen = np.array(one.token_ids, np.int64)
    logits = reference.logits(np.concatenate([prompt, chosen[:-1]]), len(prompt))
    best, clear = labels_of(logits, "single_label")
    gaps = logits.max(axis=1) - logits[np.arange(len(chosen)), chosen]
    return Comparison(
        max_abs_logit=float(gaps.max()),
        mean_abs_logit=float(gaps.mean()),
        label_flips=int(((best[:, 0] != chosen) & clear).sum()),
        clear_rows=int(clear.sum()),
        nan_count=0,
        scale=max(1.0, float(np.abs(logits).max())),
    )


def _joined(parts: Sequence[Comparison], failed: int) -> Comparison:
    """One comparison of rows with equally many tokens; rows without one count as NaN."""
    return Comparison(
        max_abs_logit=max((part.max_abs_logit for part in parts), default=0.0),
        mean_abs_logit=float(np.mean([part.mean_abs_logit for part in parts])) if parts else 0.0,
        label_flips=sum(part.label_flips for part in parts),
        clear_rows=sum(part.clear_rows for part in parts),
        nan_count=failed,
        scale=min((part.scale for part in parts), default=1.0),
    )


def _record(
    found: Comparison,
    tolerance: Tolerance,
    prompts: Sequence[Tokens],
    versions: dict[str, str],
    made_rows: int,
    moved_rows: int,
    notes: GenerationParity,
) -> ParityRecord:
    reasons = judge(found, tolerance, moved_rows if notes.promised else 0)
    return ParityRecord(
        passed=not reasons,
        reasons=reasons,
        rows=len(prompts),
        max_abs_logit=found.max_abs_logit,
        mean_abs_logit=found.mean_abs_logit,
        label_flips=found.label_flips,
        nan_count=found.nan_count,
        moved_rows=moved_rows,
        lengths=tuple(sorted({len(prompt) for prompt in prompts})),
        made_rows=made_rows,
        tolerance=tolerance,
        versions=versions,
        generation=notes,
    )
