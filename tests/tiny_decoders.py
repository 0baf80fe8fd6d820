"""Random tiny causal language models of eight architectures, with a byte-level tokenizer made offline, for tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tiny_models import CORPUS

POSITIONS = 128
SPECIAL = ["<pad>", "<s>", "</s>", "<|end|>"]
EOS = 2
VOCABULARY = 320
HIDDEN: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": POSITIONS,
}
GROUPED = {**HIDDEN, "num_key_value_heads": 2}
CHAT = (
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>{% endif %}"
)


def make_decoder(directory: Path, architecture: str = "llama", seed: int = 0, **sizes: int) -> Path:
    """Write a model of that architecture (see ARCHITECTURES); returns the directory. `sizes` for llama and gemma."""
    import torch

    torch.manual_seed(seed)
    tokens = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": EOS, **sizes}
    model = ARCHITECTURES[architecture](tokens)
    with torch.no_grad():
        # The default spread of 0.02 gives nearly constant logits, which would hide padding and ordering bugs.
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.2)
    model.eval().save_pretrained(directory)
    _save_tokenizer(directory)
    return directory


def prompts(lengths: list[int], seed: int = 0) -> list[NDArray[np.int64]]:
    """Ordinary tokens, one prompt per length."""
    rng = np.random.default_rng(seed)
    return [rng.integers(len(SPECIAL), VOCABULARY, length) for length in lengths]


def greedy_by_transformers(model_dir: Path, prompt: NDArray[np.int64], new_tokens: int) -> list[int]:
    """New tokens of `generate`, fp32, batch 1, its default cache and attention."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    ids = torch.from_numpy(prompt)[None]
    with torch.inference_mode():
        found = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new_tokens)
    tokens: list[int] = found[0, len(prompt) :].tolist()
    return tokens


def _save_tokenizer(directory: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": ["<|end|>"]}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=POSITIONS, **names)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(config, indent=1))


def _llama(tokens: dict[str, Any]) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**{**GROUPED, **tokens}))


def _qwen2(tokens: dict[str, Any]) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**GROUPED, **tokens))


def _qwen3(tokens: dict[str, Any]) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**GROUPED, head_dim=16, **tokens))


def _gpt2(tokens: dict[str, Any]) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=POSITIONS, **tokens))


def _phi3(tokens: dict[str, Any]) -> Any:
    from transformers import Phi3Config, Phi3ForCausalLM

    return Phi3ForCausalLM(Phi3Config(**GROUPED, **tokens))


def _mistral(tokens: dict[str, Any]) -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    # A window shorter than most rows, so that sliding is exercised.
    return MistralForCausalLM(MistralConfig(**GROUPED, sliding_window=12, **tokens))


def _gemma(tokens: dict[str, Any]) -> Any:
    from transformers import GemmaConfig, GemmaForCausalLM

    return GemmaForCausalLM(GemmaConfig(**{**HIDDEN, **tokens}, num_key_value_heads=1, head_dim=8))


def _gemma2(tokens: dict[str, Any]) -> Any:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    # One layer slides, one does not.
    return Gemma2ForCausalLM(Gemma2Config(**GROUPED, head_dim=8, sliding_window=12, **tokens))


ARCHITECTURES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gpt2": _gpt2,
    "phi3": _phi3,
    "mistral": _mistral,
    "gemma": _gemma,
    "gemma2": _gemma2,
}
"""Name -> model of a config that also takes the given token options."""
