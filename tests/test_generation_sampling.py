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
    own = {"stop_token_ids", "seed", "max_new_tokens"}
    for name in set(ours) - own:
        assert (theirs[name] or None) == (ours[name] or None), name
