"""How a shard's prompts become texts: requests to a decoder, and its completions back in the shard's order."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compile.errors import ArtifactError
from compile.generation.constraints import Constraint
from compile.generation.requests import Asked, Completion, Request, TextRules, sample_requests
from compile.generation.sampling import Sampling
from compile.generation.static import StaticGenerator
from compile.generation.stops import visible_text
from compile.targets.decoders import Generator
from compile.targets.neuron_engine import NeuronEngine
from pipeline.batch_api.asks import RowAsks
from pipeline.context import Context
from pipeline.layout import token_object
from pipeline.row_ids import origins, row_ids
from pipeline.run_plan import RunPlan
from pipeline.snapshot import Snapshot, load_snapshot
from pipeline.tasks.generate import TEXT
from pipeline.tokenized import TokenBlock, per_row

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON lacks, as in OpenAI's answers."""


@dataclass(slots=True)
class DrawIds:
    """The row ids that decide what is drawn: those of the output, whatever shard a row is in."""

    context: Context
    plan: RunPlan
    _snapshot: Snapshot | None = None
    _known: dict[int, list[str]] = field(default_factory=dict)

    def of(self, block: TokenBlock) -> list[str]:
        """One per row. Two rows may have one id, if the input has."""
        return per_row(block, self._known, self._read)

    def _read(self, split: int) -> list[str]:
        self._snapshot = self._snapshot or load_snapshot(self.context.objects, self.plan.snapshot_uri)
        data = self.context.objects.get(token_object(self.plan.tokens_uri, split, "kept.parquet"))
        table = pq.read_table(pa.BufferReader(data), columns=["__piece", "__row", "__row_id"])
        pieces, rows, given = (table[name].to_pylist() for name in table.column_names)
        return row_ids(given, *origins(self.plan, self._snapshot, split, pieces, rows))


@dataclass(slots=True)
class DecoderEngine:
    """See pipeline.execution.Engine. All rows that it is given share its slots."""

    generator: Generator
    sampling: Sampling
    decode: Callable[[Sequence[int]], str]
    draw_ids: DrawIds
    token_ids: bool
    """Whether the tokens of texts are kept."""
    constraint: Constraint | None = None
    asks: RowAsks | None = None
    """Where rows have settings of their own."""
    spell: Callable[[int], str] = str
    """One token as text, special ones too."""
    log_probability: bool = True
    """Whether that of texts is kept."""
    group: int = 1 << 30
    kind: pa.DataType = field(default_factory=lambda: pa.list_(TEXT))
    _counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def execute(self, rows: TokenBlock) -> pa.Array:
        ends = np.cumsum(rows.lengths)
        prompts = [rows.flat[end - length : end] for end, length in zip(ends, rows.lengths, strict=True)]
        asked: Sequence[Asked | None] = self.asks.of(rows) if self.asks else [None] * len(rows)
        settings = [one.sampling if one else self.sampling for one in asked]
        # Nothing is drawn in a greedy text, so a row needs no more than a name of its own.
        drawn = any(one.do_sample for one in settings)
        names = self.draw_ids.of(rows) if drawn else [str(row) for row in range(len(rows))]
        found: list[list[dict[str, Any]]] = [[] for _ in prompts]
        for wave in _waves(names):
            given = ((names[row], prompts[row], self.sampling, asked[row]) for row in wave)
            requests = [one for row in given for one in sample_requests(*row)]
            row_of = {names[row]: row for row in wave}
            for one in sorted(self._generate(requests), key=lambda one: one.sample):
                row = row_of[one.row_id]
                found[row].append(self._text(one, settings[row]))
        return pa.array(found, self.kind)

    def idle(self) -> None:
        """One token of a prompt of one token."""
        list(self.generator.generate([Request("", np.zeros(1, np.int64), 0, 1)], self.sampling, self._rules()))

    def counts(self) -> dict[str, Any]:
        found, self._counts = dict(self._counts), defaultdict(int)
        return found

    def _rules(self) -> TextRules:
        return TextRules(self.decode, self.constraint, self.log_probability)

    def _generate(self, requests: list[Request]) -> list[Completion]:
        try:
            running = self.generator.generate(requests, self.sampling, self._rules())
        except ValueError as error:  # before anything ran: the plan or the job was not checked, no row is to blame
            raise ArtifactError(f"the requests do not fit the artifact: {error}") from error
        found = list(running)
        self._counts["first_token_steps"] += sum(one.first_token_step for one in found)
        self._counts["last_token_steps"] += sum(one.last_token_step for one in found)
        use = self.generator.use if isinstance(self.generator, StaticGenerator | NeuronEngine) else None
        if use is not None:
            counted = {
                "slot_tokens": use.prefill_slot_tokens, "prefills": use.prefills, "decode_steps": use.decode_steps,
                "decode_slots": use.decode_slots, "decode_tokens": use.decode_tokens,
            }  # fmt: skip
            for name, count in counted.items():
                self._counts[name] += count
        return found

    def _text(self, one: Completion, sampling: Sampling) -> dict[str, Any]:
        failed = one.failed
        return {
            "text": None if failed else visible_text(sampling, one.token_ids, one.finish_reason, self.decode),
            "finish_reason": one.finish_reason,
            "prompt_tokens": one.prompt_tokens,
            "output_tokens": len(one.token_ids),
            "log_probability": one.log_probability if self.log_probability else None,
            "token_ids": one.token_ids if self.token_ids else None,
            "logprobs": None if sampling.logprobs is None or failed else self._logprobs(one),
        }

    def _logprobs(self, one: Completion) -> str:
        """JSON: per new token [text, log probability, [[text, log probability] of the most probable ones]]."""
        return json.dumps(
            [
                [
                    self.spell(each.token),
                    max(each.log_probability, LEAST_LOGPROB),
                    [[self.spell(token), max(value, LEAST_LOGPROB)] for token, value in each.top],
                ]
                for each in one.logprobs
            ]
        )


def _waves(names: Sequence[str]) -> Iterator[list[int]]:
    """Rows in groups in which no name is twice: a completion is known by its row's name."""
    waiting = list(range(len(names)))
    while waiting:
        seen: dict[str, int] = {}
        for row in waiting:
            seen.setdefault(names[row], row)
        yield list(seen.values())
        chosen = set(seen.values())
        waiting = [row for row in waiting if row not in chosen]
