"""Greedy texts of a real model on real prompts: the static path against transformers' generate, token for token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from compile.generation.requests import Request, TextRules
from compile.generation.sampling import Sampling
from compile.generation.static import StaticGenerator
from compile.generation.stops import eos_token_ids, visible_text
from compile.model import read_model
from compile.shapes import Shape
from compile.targets.decoders import load_decoder_target
from demo.chat_model import build_chat_model
from demo.reviews import load_reviews

FOLDER = Path(__file__).parents[1] / ".demo" / "models" / "smollm2"
NEW_TOKENS, LONGEST = 24, 128


@pytest.fixture(scope="module")
def model_dir() -> Path:
    return build_chat_model(FOLDER)


def chat_prompts(model_dir: Path, count: int) -> list[NDArray[np.int64]]:
    """Questions about real reviews, of at most LONGEST tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    found: list[NDArray[np.int64]] = []
    for review in load_reviews():
        question = f"What did this person think of the movie? Answer in one sentence.\n\n{review.text}"
        ids = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
        if len(ids) <= LONGEST:
            found.append(np.array(ids, np.int64))
        if len(found) == count:
            return found
    raise AssertionError("too few short reviews")


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("count", "new_tokens"), [(5, 8), pytest.param(200, NEW_TOKENS, marks=pytest.mark.slow)])
def test_real_prompts_give_the_texts_of_transformers(
    model_dir: Path, tmp_path: Path, count: int, new_tokens: int
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    texts = chat_prompts(model_dir, count)
    target, shape = load_decoder_target("torch", new_tokens), Shape(length=LONGEST, batch=min(8, count - 1))
    target.compile(target.prepare(model_dir, tmp_path, "fp32", []), shape, "fp32", tmp_path)
    generator = StaticGenerator(target.load(tmp_path, shape, "fp32"))
    sampling = Sampling(max_new_tokens=new_tokens, eos_token_id=eos_token_ids(model_dir))
    requests = [Request(str(index), text) for index, text in enumerate(texts)]
    found = {one.row_id: list(one.token_ids) for one in generator.generate(requests, sampling, TextRules())}
    assert generator.use is not None
    assert generator.use.occupancy_before_tail == 1.0
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    different = []
    for index, text in enumerate(texts):
        ids = torch.from_numpy(text)[None]
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new_tokens)
        if out[0, len(text) :].tolist() != found[str(index)]:
            different.append(index)
    assert different == []


@pytest.mark.slow
def test_the_converted_model_answers(model_dir: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    assert tokenizer.encode("in 2026") == tokenizer.encode("in") + tokenizer.encode(" ") + [
        token for digit in "2026" for token in tokenizer.encode(digit)
    ]
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = np.array(tokenizer.apply_chat_template(messages, add_generation_prompt=True), np.int64)
    assert eos_token_ids(model_dir) == (tokenizer.eos_token_id,) == (2,)
    assert read_model(model_dir, classifier=False).max_positions == 8192
    target, shape = load_decoder_target("openvino", 20), Shape(length=64, batch=2)
    target.compile(target.prepare(model_dir, tmp_path / "work", "fp32", []), shape, "fp32", tmp_path)
    sampling = Sampling(eos_token_id=(2,))
    (one,) = target.load(tmp_path, shape, "fp32").generate([Request("x", prompt)], sampling, TextRules())
    shown = visible_text(sampling, one.token_ids, one.finish_reason, lambda ids: tokenizer.decode(ids, True))
    assert (shown, one.finish_reason) == ("The capital of France is Paris.", "stop")
