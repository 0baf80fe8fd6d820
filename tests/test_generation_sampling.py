"""Sampling against transformers: the same distribution for every option, and draws that belong to the row alone."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from compile.generation.sampling import Chooser, Sampling, draw, log_probability, uniform

VOCABULARY = 60
DRAWS = 1000
END = (3, 7)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"top_k": 0},
    "default top_k": {},
    "temperature": {"temperature": 0.6, "top_k": 0},
    "hot": {"temperature": 1.7, "top_k": 0},
    "top_k": {"top_k": 7},
    "top_k of all": {"top_k": 500},
    "top_p": {"top_p": 0.8, "top_k": 0},
    "min_p": {"min_p": 0.1, "top_k": 0},
    "repetition_penalty": {"repetition_penalty": 1.6, "top_k": 0},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2, "top_k": 0},
    "logit bias": {"sequence_bias": (((11,), 3.0), ((12,), -50.0)), "top_k": 0},
    "sequence bias": {"sequence_bias": (((5, 9, 20), 4.0), ((6, 21), 4.0)), "top_k": 0},
    "min_new_tokens": {"min_new_tokens": 4, "top_k": 0},
    "cold, top_k, top_p": {"temperature": 0.7, "top_k": 20, "top_p": 0.9},
    "top_p, min_p": {"top_p": 0.95, "min_p": 0.02, "top_k": 0, "temperature": 1.3},
    "all": {
        "temperature": 0.8,
        "top_k": 30,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 2,
        "min_new_tokens": 4,
        "sequence_bias": (((9, 30), 2.0), ((31,), 1.5)),
    },
}
PROMPT = np.array([4, 5, 9, 13, 5], np.int64)
NEW = np.array([9, 40, 5], np.int64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny Llama of this vocabulary, for its `generate` machinery and its logits."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, pad_token_id=0, bos_token_id=1, **sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    return model.eval()


def logits_of(model: Any, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    import torch

    with torch.inference_mode():
        found: NDArray[np.float32] = model(torch.from_numpy(tokens)[None]).logits[0, -1].numpy()
    return found


def reference(model: Any, options: dict[str, Any], logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Probabilities (vocabulary,) from the processors that transformers' own `generate` would make."""
    import torch
    from transformers import GenerationConfig

    given = dict(options)
    if "sequence_bias" in given:
        given["sequence_bias"] = [[list(ids), bias] for ids, bias in given["sequence_bias"]]
    config = GenerationConfig(do_sample=True, eos_token_id=list(END), **given)
    model._prepare_special_tokens(config, kwargs_has_attention_mask=True)
    processors = model._get_logits_processor(config, len(PROMPT))
    ids = torch.from_numpy(np.concatenate([PROMPT, NEW]))[None]
    scores = processors(ids, torch.from_numpy(logits)[None])
    found: NDArray[np.float64] = scores.double().softmax(-1)[0].numpy()
    return found


@pytest.mark.parametrize("name", OPTIONS)
def test_draws_follow_the_distribution_of_transformers(model: Any, name: str) -> None:
    options, tokens = OPTIONS[name], np.concatenate([PROMPT, NEW])
    logits = logits_of(model, tokens)
    expected = reference(model, options, logits)
    sampling = Sampling(do_sample=True, eos_token_id=END, seed=5, **options)
    counts = np.zeros(VOCABULARY)
    for row in range(DRAWS):
        counts[Chooser(sampling, PROMPT.tolist(), f"row {row}").choose(logits, tokens)] += 1
    assert counts[expected == 0].sum() == 0, "a token was drawn that transformers rules out"
    likely = expected * DRAWS >= 5
    observed, wanted = counts[likely], expected[likely] * DRAWS
    rest = DRAWS - wanted.sum()
    if rest >= 1:
        observed, wanted = np.append(observed, DRAWS - observed.sum()), np.append(wanted, rest)
    # Draws are a fixed function of the seed, so this either always passes or always fails.
    assert len(wanted) == 1 or stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-3


@pytest.mark.parametrize("name", OPTIONS)
def test_probabilities_are_those_of_transformers(model: Any, name: str) -> None:
    """Sharper than any number of draws: the point at which each token's interval ends is where it should be."""
    options, tokens = OPTIONS[name], np.concatenate([PROMPT, NEW])
    logits = logits_of(model, tokens)
    expected = reference(model, options, logits)
    chooser = Chooser(Sampling(do_sample=True, eos_token_id=END, **options), PROMPT.tolist(), "")
    ids, probabilities = chooser.distribution(logits, tokens)
    found = np.zeros(VOCABULARY)
    found[ids] = probabilities
    assert np.abs(found - expected).max() < 1e-6
    assert ((found > 0) == (expected > 0)).all()


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.6}, {"no_repeat_ngram_size": 2}, OPTIONS["all"]])
def test_greedy_takes_the_best_after_the_rules(model: Any, options: dict[str, Any]) -> None:
    import torch
    from transformers import GenerationConfig

    given = dict(options)
    if "sequence_bias" in given:
        given["sequence_bias"] = [[list(ids), bias] for ids, bias in given["sequence_bias"]]
    config = GenerationConfig(do_sample=False, eos_token_id=list(END), max_new_tokens=20, pad_token_id=0, **given)
    expected = model.generate(torch.from_numpy(PROMPT)[None], generation_config=config)[0, len(PROMPT) :].tolist()
    sampling = Sampling(eos_token_id=END, max_new_tokens=20, **options)
    chooser, tokens = Chooser(sampling, PROMPT.tolist(), ""), PROMPT
    while len(tokens) < len(PROMPT) + 20 and tokens[-1] not in END:
        tokens = np.append(tokens, chooser.choose(logits_of(model, tokens), tokens))
    assert tokens[len(PROMPT) :].tolist() == expected


def test_a_draw_is_a_function_of_seed_row_sample_and_position() -> None:
    assert uniform(1, "a", 0, 0) == pytest.approx(0.32363162, abs=1e-7), "changing this changes every job's output"
    base = uniform(1, "a", 0, 0)
    assert len({base, uniform(2, "a", 0, 0), uniform(1, "b", 0, 0), uniform(1, "a", 1, 0), uniform(1, "a", 0, 1)}) == 5
    draws = [uniform(3, f"row {row}", sample, place) for row in range(40) for sample in range(5) for place in range(5)]
    assert min(draws) >= 0
    assert max(draws) < 1
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.08


def test_the_inverse_of_the_distribution() -> None:
    probabilities = np.array([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    points = (0.0, 0.2499, 0.25, 0.7499, 0.75, math.nextafter(1.0, 0.0))
    assert [draw(probabilities, point) for point in points] == [1, 1, 3, 3, 4, 4]


def test_a_constraint_leaves_only_what_it_allows(model: Any) -> None:
    logits = logits_of(model, PROMPT)
    allowed = np.zeros(VOCABULARY, np.bool_)
    allowed[[8, 19]] = True
    for options in ({}, {"do_sample": True}, {"do_sample": True, "top_k": 1}, {"do_sample": True, "top_p": 0.5}):
        chosen = {
            Chooser(Sampling(**options), PROMPT.tolist(), str(row)).choose(logits, PROMPT, allowed) for row in range(30)
        }
        assert chosen <= {8, 19}
        if not options.get("do_sample") or options.get("top_k") == 1:
            assert chosen == {[8, 19][int(logits[19] > logits[8])]}


def test_log_probability_is_the_models_own() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32)) + np.float32(4)
    assert log_probability(logits, 1) == pytest.approx(math.log(0.3), abs=1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.0),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", 2.0),
        ("repetition_penalty", 0.0),
        ("max_new_tokens", 0),
        ("min_new_tokens", 21),
        ("num_return_sequences", 0),
        ("num_return_sequences", 2),
        ("stop_strings", ("",)),
        ("sequence_bias", (((), 1.0),)),
    ],
)
def test_impossible_settings_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be"):
        Sampling(**{field: value})


def test_settings_survive_json_and_unknown_names_do_not() -> None:
    options = OPTIONS["all"] | {"do_sample": True, "eos_token_id": END, "stop_strings": ("\n\n",), "seed": 9}
    sampling = Sampling(**options, num_return_sequences=3)
    assert Sampling.from_json(json.loads(json.dumps(sampling.to_json()))) == sampling
    with pytest.raises(ValueError, match=r"unknown sampling settings topk; choose from: .*top_k"):
        Sampling.from_json({"topk": 3})


def test_names_and_defaults_are_those_of_transformers() -> None:
    from transformers import GenerationConfig

    theirs, ours = GenerationConfig().to_dict(), Sampling().to_json()
    assert theirs["max_length"] == ours["max_new_tokens"] == 20, "transformers stops at 20 where nothing is said"
    only_ours = {"stop_token_ids", "seed", "max_new_tokens", "presence_penalty", "frequency_penalty", "logprobs"}
    for name in set(ours) - only_ours:
        assert (theirs[name] or None) == (ours[name] or None), name


def test_presence_and_frequency_penalties_are_those_of_openais_formula() -> None:
    """Over new tokens alone: 9 is in the prompt too, 40 is twice among the new ones, 4 only in the prompt."""
    logits = np.random.default_rng(0).normal(size=VOCABULARY).astype(np.float32)
    new = np.array([9, 40, 5, 40], np.int64)
    sampling = Sampling(do_sample=True, top_k=0, presence_penalty=0.7, frequency_penalty=-1.3, max_new_tokens=9)
    chooser = Chooser(sampling, PROMPT.tolist(), "row")
    penalised = logits.astype(np.float64)
    for token, count in ((9, 1), (40, 2), (5, 1)):
        penalised[token] -= 0.7 - 1.3 * count
    expected = np.exp(penalised) / np.exp(penalised).sum()
    ids, found = chooser.distribution(logits, np.concatenate([PROMPT, new]))
    assert ids.tolist() == list(range(VOCABULARY))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    ids, found = chooser.distribution(logits, PROMPT)
    np.testing.assert_allclose(found, np.exp(logits) / np.exp(logits).sum(), rtol=1e-5)
    greedy = Chooser(Sampling(presence_penalty=100.0), PROMPT.tolist(), "row")
    best = int(logits.argmax())
    assert greedy.choose(logits, np.append(PROMPT, best)) == int(np.argsort(logits)[-2])
