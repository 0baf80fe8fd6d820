"""The gate for decoders: what passes, what is refused and why, and that dependence on company is measured."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_decoders import make_decoder, prompts

from compile.artifacts import ArtifactSpec, artifact_spec
from compile.generation.parity import CausalReference, prove_decoder, prove_engine, prove_static
from compile.generation.requests import Completion, Request, TextRules
from compile.generation.sampling import Sampling
from compile.generation.static import StaticGenerator, as_generator
from compile.generation.timing import slot_seconds
from compile.model import read_model
from compile.parity import TOLERANCES, ParityRecord
from compile.shapes import Shape
from compile.targets.cpu import has_bf16
from compile.targets.decoders import Generator, StaticDecoder, load_decoder_target

SHAPE, NEW_TOKENS = Shape(length=24, batch=3), 12
TEXTS = prompts([3, 24, 11, 17, 24, 2, 9])


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decoder(tmp_path_factory.mktemp("decoder") / "llama")


@pytest.fixture(scope="module")
def loaded(model_dir: Path, tmp_path_factory: pytest.TempPathFactory):
    @functools.cache
    def load(target: str, precision: str = "fp32") -> Any:
        toolchain, folder = load_decoder_target(target, NEW_TOKENS), tmp_path_factory.mktemp(target)
        (folder / "out").mkdir()
        toolchain.compile(toolchain.prepare(model_dir, folder, precision, []), SHAPE, precision, folder / "out")
        return toolchain.load(folder / "out", SHAPE, precision)

    return load


class Bent:
    """A decoder whose logits something was done to."""

    def __init__(self, inner: StaticDecoder, bend: Any) -> None:
        self.inner, self.bend, self.grid, self.vocab_size = inner, bend, inner.grid, inner.vocab_size

    def prefill(self, slots: Any, texts: Any) -> Any:
        return self.inner.prefill(slots, texts)

    def decode(self, tokens: Any, positions: Any) -> Any:
        logits = self.inner.decode(tokens, positions)
        return self.bend(logits, positions)


class Neighbourly:
    """An engine whose texts end differently in company."""

    def __init__(self, inner: Generator) -> None:
        self.inner = inner

    def generate(self, requests: Sequence[Request], sampling: Sampling, text: TextRules) -> Iterator[Completion]:
        for one in self.inner.generate(requests, sampling, text):
            last = len(requests) if one.row_id == "2" and len(requests) > 1 else one.token_ids[-1]
            yield replace(one, token_ids=(*one.token_ids[:-1], last))


@pytest.mark.parametrize("precision", ["fp32", *(["bf16"] if has_bf16() else [])])
def test_a_static_decoder_passes_and_is_independent(loaded, model_dir: Path, precision: str) -> None:
    record = prove_static(
        loaded("torch", precision), TEXTS, CausalReference(model_dir), TOLERANCES[precision], {"torch": "1"}
    )
    assert record.reasons == ()
    assert record.passed
    assert record.generation is not None
    assert record.generation.independent
    assert (record.rows, record.lengths, record.generation.new_tokens) == (7, (2, 3, 9, 11, 17, 24), 12)
    assert record.max_abs_logit > 0
    assert ParityRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


@pytest.mark.parametrize(
    ("bend", "reason"),
    [
        (lambda logits, positions: logits + np.float32(0.5) * (np.arange(logits.shape[1]) % 2), "logit difference"),
        (lambda logits, positions: np.where(positions[:, None] == 13, np.float32(np.nan), logits), "NaN"),
        (lambda logits, positions: logits + np.float32(1e-5) * np.arange(3)[:, None], "their position in the batch"),
        (lambda logits, positions: logits + np.float32(1e-9) * positions.sum() ** 2, "with their neighbours"),
    ],
)
def test_a_decoder_that_computes_something_else_is_refused(loaded, model_dir: Path, bend: Any, reason: str) -> None:
    decoder = Bent(loaded("torch"), bend)
    record = prove_static(decoder, TEXTS, CausalReference(model_dir), TOLERANCES["fp32"], {})
    assert not record.passed
    assert reason in "; ".join(record.reasons)


def test_an_engine_passes_by_its_choices(loaded, model_dir: Path) -> None:
    record = prove_decoder(loaded("openvino"), TEXTS, CausalReference(model_dir), TOLERANCES["fp32"], {})
    assert record.reasons == ()
    assert record.generation is not None
    assert not record.generation.logits_seen
    assert record.moved_rows == 0


def test_dependence_on_company_is_recorded_and_not_refused(loaded, model_dir: Path) -> None:
    wide = replace(TOLERANCES["fp32"], max_abs_logit=9.0, mean_abs_logit=9.0, max_label_flips=1.0)
    engine = Neighbourly(StaticGenerator(loaded("torch")))
    record = prove_engine(engine, TEXTS, CausalReference(model_dir), wide, {})
    assert record.passed
    assert record.generation is not None
    assert not record.generation.independent
    assert record.moved_rows == 1


def test_an_engine_that_makes_bad_choices_is_refused(loaded, model_dir: Path, tmp_path: Path) -> None:
    other = make_decoder(tmp_path / "other", seed=7)
    record = prove_engine(loaded("openvino"), TEXTS, CausalReference(other), TOLERANCES["fp32"], {})
    assert not record.passed
    assert "clear labels differ" in "; ".join(record.reasons)


@pytest.mark.parametrize("target", ["torch", "openvino"])
def test_new_tokens_are_part_of_an_artifacts_key(model_dir: Path, target: str) -> None:
    model = read_model(model_dir, classifier=False)
    short, long = (artifact_spec(load_decoder_target(target, count), model, SHAPE, "fp32") for count in (8, 9))
    assert short.key != long.key
    assert ArtifactSpec.from_json(json.loads(json.dumps(short.to_json()))) == short


def test_what_a_set_of_slots_costs_grows_with_its_texts(loaded) -> None:
    """A clock that counts steps instead of seconds, so that the extrapolation is exact."""
    decoder = loaded("torch")
    ticks = {"prefill": 5.0, "decode": 2.0}
    passed = [0.0]

    class Ticking(Bent):
        def prefill(self, slots: Any, texts: Any) -> Any:
            passed[0] += ticks["prefill"]
            return super().prefill(slots, texts)

        def decode(self, tokens: Any, positions: Any) -> Any:
            passed[0] += ticks["decode"]
            return super().decode(tokens, positions)

    generator = as_generator(Ticking(decoder, lambda logits, positions: logits))
    for tokens in (1, 8, 100):
        found = slot_seconds(generator, decoder.grid, tokens, decoder.vocab_size, lambda: passed[0])
        assert found == pytest.approx(3 * 5.0 + (tokens - 1) * 2.0)
