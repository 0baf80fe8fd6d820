"""Greedy texts of a real model on real prompts: the static path against transformers' generate, token for token."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from compile.generation.requests import Request, TextRules
from compile.generation.sampling import Sampling
from compile.generation.static import StaticGenerator
from compile.generation.stops import eos_token_ids, visible_text
from compile.model import read_model
from compile.shapes import Shape
from compile.targets.cpu import cpu_kind
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


Say = Callable[[str], None]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Progress of minutes of work, past pytest's capture."""

    def line(text: str) -> None:
        with capsys.disabled():
            sys.stderr.write(f"{text}\n")

    return line


def texts_of_transformers(model_dir: Path, prompts: list[NDArray[np.int64]], new_tokens: int, say: Say) -> list[Any]:
    """New tokens of `generate` with one prompt at a time, fp32, greedy.

    Each text is kept in a file beside the model as soon as it is there, so that a run that was ended goes on. The
    file's name has the versions and the model.
    """
    import torch
    import transformers

    torch.set_num_threads(1)  # two threads on a busy machine of two cores take ten times as long
    made_by = [torch.__version__, transformers.__version__, cpu_kind(), (model_dir / "source.json").read_text()]
    digest = hashlib.sha256(json.dumps(made_by).encode()).hexdigest()[:12]
    kept = model_dir.parent / f"{model_dir.name}-greedy-{digest}.jsonl"
    lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.is_file() else []
    known = {(tuple(line["prompt"]), line["new_tokens"]): line["tokens"] for line in lines}
    model: Any = None
    for number, prompt in enumerate(prompts):
        key = tuple(prompt.tolist()), new_tokens
        if key in known:
            continue
        model = model or transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        ids = torch.from_numpy(prompt)[None]
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new_tokens)
        known[key] = out[0, len(prompt) :].tolist()
        with kept.open("a") as file:
            file.write(json.dumps({"prompt": key[0], "new_tokens": new_tokens, "tokens": known[key]}) + "\n")
        if number % 20 == 19:
            say(f"transformers: {number + 1} of {len(prompts)} prompts")
    return [known[tuple(prompt.tolist()), new_tokens] for prompt in prompts]


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("target_name", "count", "new_tokens"),
    [
        ("torch", 5, 8),
        pytest.param("torch", 200, NEW_TOKENS, marks=pytest.mark.slow),
        pytest.param("openvino-slots", 200, NEW_TOKENS, marks=pytest.mark.slow),
    ],
)
def test_real_prompts_give_the_texts_of_transformers(
    model_dir: Path, tmp_path: Path, target_name: str, count: int, new_tokens: int, say: Say
) -> None:
    prompts = chat_prompts(model_dir, count)
    expected = texts_of_transformers(model_dir, prompts, new_tokens, say)
    target, shape = load_decoder_target(target_name, new_tokens), Shape(length=LONGEST, batch=min(8, count - 1))
    (tmp_path / "out").mkdir()
    target.compile(target.prepare(model_dir, tmp_path, "fp32", []), shape, "fp32", tmp_path / "out")
    generator = StaticGenerator(target.load(tmp_path / "out", shape, "fp32"))
    sampling = Sampling(max_new_tokens=new_tokens, eos_token_id=eos_token_ids(model_dir))
    requests = [Request(str(index), prompt) for index, prompt in enumerate(prompts)]
    found: dict[int, list[int]] = {}
    for one in generator.generate(requests, sampling, TextRules()):
        found[int(one.row_id)] = list(one.token_ids)
        if len(found) % 20 == 0:
            say(f"{target_name}: {len(found)} of {count} texts")
    assert generator.use is not None
    assert generator.use.occupancy_before_tail == 1.0
    different = [index for index, tokens in enumerate(expected) if found[index] != tokens]
    say(f"{target_name}: {count - len(different)} of {count} texts of {new_tokens} tokens equal transformers' generate")
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
