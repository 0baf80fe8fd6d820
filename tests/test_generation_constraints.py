"""Texts that must look like something: every sample does, on any model, and no text changes with its company."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tiny_decoders import EOS, VOCABULARY, make_decoder, prompts

from compile.errors import ModelError
from compile.generation.constraints import GrammarConstraint, GrammarTokens, json_schema_grammar, regex_grammar
from compile.generation.requests import Request, TextRules
from compile.generation.sampling import Sampling
from compile.generation.static import StaticGenerator
from compile.generation.stops import visible_text
from compile.shapes import Shape
from compile.targets.decoders import load_decoder_target

SHAPE, NEW_TOKENS = Shape(length=12, batch=4), 60
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"label": {"enum": ["good", "bad"]}, "stars": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["label", "stars"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decoder(tmp_path_factory.mktemp("decoder") / "llama")


@pytest.fixture(scope="module")
def generator(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> StaticGenerator:
    target, folder = load_decoder_target("torch", NEW_TOKENS), tmp_path_factory.mktemp("torch")
    target.compile(model_dir, SHAPE, "fp32", folder)
    loaded: Any = target.load(folder, SHAPE, "fp32")
    return StaticGenerator(loaded)


def texts(
    model_dir: Path, generator: StaticGenerator, grammar: str, sampling: Sampling, rows: range
) -> dict[str, tuple[str, str]]:
    """Row -> reason and visible text."""
    from tokenizers import Tokenizer

    decode = Tokenizer.from_file(str(model_dir / "tokenizer.json")).decode
    rules = TextRules(decode, GrammarConstraint(GrammarTokens(model_dir, VOCABULARY, [EOS]), grammar))
    all_prompts = prompts([5, 12, 7, 1, 9, 3, 11, 2, 8, 6, 4, 10])
    requests = [Request(str(row), all_prompts[row]) for row in rows]
    return {
        one.row_id: (one.finish_reason, visible_text(sampling, one.token_ids, one.finish_reason, decode))
        for one in generator.generate(requests, sampling, rules)
    }


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "temperature": 2.0, "top_k": 0, "seed": 1}])
def test_every_text_is_json_of_the_schema(model_dir: Path, generator: StaticGenerator, options: dict[str, Any]) -> None:
    sampling = Sampling(max_new_tokens=NEW_TOKENS, eos_token_id=(EOS,), **options)
    grammar = json_schema_grammar(SCHEMA)
    found = texts(model_dir, generator, grammar, sampling, range(12))
    for reason, text in found.values():
        assert reason == "stop"
        value = json.loads(text)
        assert value["label"] in {"good", "bad"}
        assert value["stars"] in range(1, 6)
        assert set(value) == {"label", "stars"}
    assert texts(model_dir, generator, grammar, sampling, range(11, -1, -3)).items() <= found.items()


def test_every_text_matches_the_expression(model_dir: Path, generator: StaticGenerator) -> None:
    sampling = Sampling(max_new_tokens=NEW_TOKENS, eos_token_id=(EOS,), do_sample=True)
    for reason, text in texts(
        model_dir, generator, regex_grammar(r"(yes|no), [0-9]{2,4}"), sampling, range(12)
    ).values():
        assert reason == "stop"
        assert re.fullmatch(r"(yes|no), [0-9]{2,4}", text)


def test_a_text_that_may_not_go_on_is_told(model_dir: Path, generator: StaticGenerator) -> None:
    """Settings can forbid the only token that the constraint leaves."""
    sampling = Sampling(max_new_tokens=NEW_TOKENS, eos_token_id=(EOS,), min_new_tokens=NEW_TOKENS)
    found = texts(model_dir, generator, regex_grammar("yes"), sampling, range(3))
    assert set(found.values()) == {("dead_end", "yes")}


def test_a_limit_cuts_a_text_short(model_dir: Path, generator: StaticGenerator) -> None:
    sampling = Sampling(max_new_tokens=3, eos_token_id=(EOS,))
    found = texts(model_dir, generator, json_schema_grammar(SCHEMA), sampling, range(2))
    assert {reason for reason, _ in found.values()} == {"length"}


def test_what_cannot_be_a_constraint_is_refused(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="constraint cannot be used"):
        GrammarConstraint(GrammarTokens(model_dir, VOCABULARY, [EOS]), regex_grammar("(open"))
    with pytest.raises(ValueError, match="constraint cannot be used"):
        GrammarConstraint(GrammarTokens(model_dir, VOCABULARY, [EOS]), json_schema_grammar({"type": "strong"}))
    with pytest.raises(ValueError, match="ends a text"):
        GrammarConstraint(GrammarTokens(model_dir, VOCABULARY, []), regex_grammar("yes"))
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        GrammarConstraint(GrammarTokens(tmp_path, VOCABULARY, [EOS]), regex_grammar("yes"))
