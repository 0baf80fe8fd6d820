"""A generation engine under the executor: rows at fault are found, double names stay apart, nothing is reordered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from compile.errors import ArtifactError, DeviceError
from compile.generation.requests import Completion, Request, TextRules
from compile.generation.sampling import Sampling
from pipeline.execution import Executor, Health
from pipeline.generating import DecoderEngine, DrawIds
from pipeline.job import parse_job
from pipeline.tasks import load_task
from pipeline.tokenized import ROW, TokenBlock

POISON, LONG, NAN = 99, 98, 97
JOB = parse_job(
    {
        "name": "x", "model": {"uri": "m"}, "task": "generate", "target": "torch", "generate": {"max_new_tokens": 2},
        "input": {"uri": "in/", "text": "text"}, "output": {"uri": "out"},
    },
    "test",
)  # fmt: skip


class Device:
    """Writes the prompt's first token back, the last request first; fails when POISON is among the prompts."""

    def generate(self, requests: Sequence[Request], sampling: Sampling, text: TextRules) -> Iterator[Completion]:
        if any((request.token_ids == LONG).any() for request in requests):
            raise ValueError("a prompt is too long")
        return self._run(requests)

    def _run(self, requests: Sequence[Request]) -> Iterator[Completion]:
        assert len({(request.row_id, request.sample) for request in requests}) == len(requests)
        for request in reversed(requests):
            if (request.token_ids == POISON).any():
                raise DeviceError("broken")
            reason = "nan_logits" if (request.token_ids == NAN).any() else "length"
            tokens = (int(request.token_ids[0]), request.sample)
            yield Completion(request.row_id, request.sample, tokens, reason, len(request.token_ids), -1.0)


class Names(DrawIds):
    """Two rows each have one id."""

    def __init__(self) -> None:
        pass

    def of(self, block: TokenBlock) -> list[str]:
        return [f"id-{row // 2}" for row in range(len(block))]


def block(rows: int, poisoned: dict[int, int]) -> TokenBlock:
    tokens = [[row, poisoned[row]] if row in poisoned else [row] for row in range(rows)]
    flat = np.array([token for row in tokens for token in row], np.int64)
    lengths = np.array([len(row) for row in tokens], np.int64)
    return TokenBlock(flat, lengths, np.zeros(rows, ROW), np.zeros(rows, np.int64))


def executor(**sampling: Any) -> Executor:
    settings = Sampling(max_new_tokens=2, **sampling)
    engine = DecoderEngine(Device(), settings, lambda ids: " ".join(map(str, ids)), Names(), token_ids=True)
    return Executor(engine, Health(), lambda said: None)


@pytest.mark.parametrize("sampling", [{}, {"do_sample": True, "num_return_sequences": 3}])
def test_every_row_has_its_own_texts_in_order(sampling: dict[str, Any]) -> None:
    samples = sampling.get("num_return_sequences", 1)
    found = executor(**sampling).run(block(7, {})).output.to_pylist()
    assert [[one["token_ids"] for one in row] for row in found] == [[[n, k] for k in range(samples)] for n in range(7)]
    assert [[one["text"] for one in row] for row in found] == [[f"{n} {k}" for k in range(samples)] for n in range(7)]


def test_a_row_that_breaks_the_device_is_a_fault_and_one_with_nan_a_reject() -> None:
    result = executor().run(block(12, {3: POISON, 8: NAN, 9: POISON}))
    assert {row: fault for row, fault in enumerate(result.faults) if fault} == dict.fromkeys((3, 9), "device_error")
    assert load_task("generate").faults(result.output, JOB) == {8: "nan_logits"}
    assert result.output.to_pylist()[8][0]["text"] is None
    assert [row[0]["token_ids"][0] for row in result.output.to_pylist() if row] == [
        row for row in range(12) if row not in (3, 9)
    ]


def test_what_does_not_fit_is_a_defect_and_no_bad_row() -> None:
    with pytest.raises(ArtifactError, match="the requests do not fit the artifact: a prompt is too long"):
        executor().run(block(4, {2: LONG}))
