"""What one would otherwise write to generate: one process that reads prompts from Parquet and writes their texts.

python -m bench.generators NAME MODEL_DIR INPUT OUTPUT

INPUT has columns `id` and `token_ids`. Prints its CPU seconds as JSON: `start_s` up to a loaded model, `loop_s` for
reading, generating, decoding and writing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NEW_TOKENS = 48
REPETITION_PENALTY = 1.1
"""Both as in jobs/reviews_summary.yaml; greedy."""
END = 2
"""SmolLM2's end token, also its padding."""
IR = "genai"
SEQUENCES = 64
"""Texts at once in GenAI: faster here than its default of 256."""
BATCH = 16

Generate = Callable[[list[list[int]]], list[list[int]]]
"""Prompts -> new tokens of each."""


def genai(model_dir: Path) -> Generate:
    """OpenVINO GenAI's continuous batching on one thread in bf16, with every prompt handed over at once."""
    import openvino as ov
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = 512
    scheduler.max_num_seqs = SEQUENCES
    scheduler.enable_prefix_caching = False
    options = {
        "INFERENCE_PRECISION_HINT": "bf16",
        "KV_CACHE_PRECISION": "bf16",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": 1,
        "ENABLE_CPU_PINNING": False,
    }
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(model_dir / IR), scheduler, "CPU", options)
    config = openvino_genai.GenerationConfig(
        max_new_tokens=NEW_TOKENS, repetition_penalty=REPETITION_PENALTY, eos_token_id=END, do_sample=False
    )

    def run(prompts: list[list[int]]) -> list[list[int]]:
        order = sorted(range(len(prompts)), key=lambda row: -len(prompts[row]))
        inputs = [ov.Tensor(np.array([prompts[row]], np.int64)) for row in order]
        found = pipeline.generate(inputs, [config] * len(inputs))
        texts: list[list[int]] = [[] for _ in prompts]
        for row, result in zip(order, found, strict=True):
            texts[row] = list(result.m_generation_ids[0])
        return texts

    return run


def transformers_sorted(model_dir: Path) -> Generate:
    """`generate` in bf16 on one thread, prompts sorted by length, in left-padded batches."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16).eval()

    def run(prompts: list[list[int]]) -> list[list[int]]:
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        texts: list[list[int]] = [[] for _ in prompts]
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            longest = len(prompts[rows[-1]])
            ids = torch.full((len(rows), longest), END)
            mask = torch.zeros_like(ids)
            for place, row in enumerate(rows):
                ids[place, longest - len(prompts[row]) :] = torch.tensor(prompts[row])
                mask[place, longest - len(prompts[row]) :] = 1
            with torch.inference_mode():
                out = model.generate(
                    ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW_TOKENS,
                    repetition_penalty=REPETITION_PENALTY,
                )  # fmt: skip
            for place, row in enumerate(rows):
                texts[row] = until_end(out[place, longest:].tolist())
        return texts

    return run


def until_end(tokens: Sequence[int]) -> list[int]:
    """Tokens up to the first END, which counts."""
    found = list(tokens)
    return found[: found.index(END) + 1] if END in found else found


GENERATORS: dict[str, Callable[[Path], Generate]] = {
    "GenAI": genai,
    "transformers": transformers_sorted,
}


def write_ir(model_dir: Path) -> None:
    """Convert the model for GenAI once, beside it: nobody's measured time includes a conversion."""
    from compile.targets.openvino_causal import convert_causal

    if not (model_dir / IR / "config.json").is_file():
        shutil.rmtree(model_dir / IR, ignore_errors=True)
        shutil.copy(model_dir / "config.json", convert_causal(model_dir, model_dir / IR) / "config.json")


def predict(generate: Generate, model_dir: Path, rows: Path, output: Path) -> float:
    """CPU seconds for one file of prompts."""
    from tokenizers import Tokenizer

    started = time.process_time()
    table = pq.read_table(rows, columns=["id", "token_ids"])
    tokens = generate(table["token_ids"].to_pylist())
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    columns = {"id": table["id"], "text": tokenizer.decode_batch(tokens), "output_tokens": list(map(len, tokens))}
    pq.write_table(pa.table(columns), output)
    return time.process_time() - started


def main() -> None:
    """Run one contestant."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=sorted(GENERATORS))
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    generate = GENERATORS[args.name](args.model_dir)
    start_s = time.process_time()
    loop_s = predict(generate, args.model_dir, args.input, args.output)
    sys.stdout.write(json.dumps({"start_s": start_s, "loop_s": loop_s}) + "\n")


if __name__ == "__main__":
    main()
