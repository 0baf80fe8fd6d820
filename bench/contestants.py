"""What one would otherwise write: one process that reads a Parquet file and writes one with predictions.

python -m bench.contestants NAME MODEL_DIR INPUT OUTPUT [INPUT OUTPUT ...]

prints its CPU seconds as JSON: `start_s` up to a loaded model, and `loop_s` of each input for reading, predicting and
writing.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Classify = Callable[[list[str]], list[tuple[str, float]]]
"""Texts -> label and score of each."""

MAX_LENGTH = 512
IR_NAME = "bench.xml"
BATCH = 32


def transformers_pipeline(model_dir: Path, dtype: str) -> Classify:
    """`transformers.pipeline` as its documentation shows it: one text at a time, in the order of the input.

    PyTorch takes as many threads as the process may use cores.
    """
    import torch
    from transformers import pipeline

    classify = pipeline("text-classification", model=str(model_dir), dtype=getattr(torch, dtype), device="cpu")

    def run(texts: list[str]) -> list[tuple[str, float]]:
        return [(said["label"], said["score"]) for said in classify(texts, truncation=True, max_length=MAX_LENGTH)]

    return run


def openvino_sorted(model_dir: Path) -> Classify:
    """An expert's loop: one dynamic graph, bf16 where the CPU has it, rows sorted by length, batches of 32."""
    import openvino as ov
    from tokenizers import Tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_LENGTH)
    core = ov.Core()
    options = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": best_precision(core)}
    request = core.compile_model(str(model_dir / IR_NAME), "CPU", options).create_infer_request()

    def run(texts: list[str]) -> list[tuple[str, float]]:
        return labelled(infer_sorted(request, [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]))

    return run


def infer_sorted(request: Any, ids: list[list[int]]) -> NDArray[np.float32]:
    """Logits (rows, 2) of token ids, in batches of 32 of similar length, each padded to its longest row."""
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    logits = np.empty((len(ids), 2), dtype=np.float32)
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        tokens = np.zeros((len(rows), len(ids[rows[-1]])), dtype=np.int64)
        mask = np.zeros_like(tokens)
        for place, row in enumerate(rows):
            tokens[place, : len(ids[row])] = ids[row]
            mask[place, : len(ids[row])] = 1
        inputs = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros_like(tokens)}
        logits[rows] = next(iter(request.infer(inputs).values()))
    return logits


def best_precision(core: Any) -> str:
    """bf16 where the CPU computes in it, f32 elsewhere: what OpenVINO itself would recommend."""
    capabilities = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return "bf16" if "BF16" in capabilities else "f32"


def labelled(logits: NDArray[np.float32]) -> list[tuple[str, float]]:
    """Label and softmax score of each row of (rows, 2) logits."""
    exp = np.exp(logits - logits.max(1, keepdims=True))
    scores = exp / exp.sum(1, keepdims=True)
    return [
        (("NEGATIVE", "POSITIVE")[best], float(row[best])) for row, best in zip(scores, scores.argmax(1), strict=True)
    ]


CONTESTANTS: dict[str, Callable[[Path], Classify]] = {
    "transformers fp32": functools.partial(transformers_pipeline, dtype="float32"),
    "transformers bf16": functools.partial(transformers_pipeline, dtype="bfloat16"),
    "OpenVINO, dynamic, sorted": openvino_sorted,
}


def write_ir(model_dir: Path) -> None:
    """Convert the model for OpenVINO once, beside it: nobody's measured time includes a conversion."""
    import openvino as ov
    import torch
    from transformers import AutoModelForSequenceClassification
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.set_verbosity_error()
    model = AutoModelForSequenceClassification.from_pretrained(model_dir).eval()
    names = ("input_ids", "attention_mask", "token_type_ids")
    example = {name: torch.ones((2, 8), dtype=torch.int64) for name in names}
    inputs = [(name, [-1, -1], ov.Type.i64) for name in names]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tracing; the agreement of all answers is checked at the end
        converted = ov.convert_model(model, example_input=example, input=inputs)
    ov.save_model(converted, str(model_dir / IR_NAME), compress_to_fp16=False)


def predict(classify: Classify, rows: Path, output: Path) -> float:
    """CPU seconds for one file of rows."""
    started = time.process_time()
    table = pq.read_table(rows)
    said = classify(table["text"].to_pylist())
    columns = {
        "id": table["id"],
        "label": [label for label, _ in said],
        "score": pa.array([s for _, s in said], pa.float32()),
    }
    pq.write_table(pa.table(columns), output)
    return time.process_time() - started


def main() -> None:
    """Run one contestant."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=sorted(CONTESTANTS))
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("files", type=Path, nargs="+", metavar="INPUT OUTPUT")
    args = parser.parse_args()
    classify = CONTESTANTS[args.name](args.model_dir)
    start_s = time.process_time()
    loops = [predict(classify, *pair) for pair in zip(args.files[::2], args.files[1::2], strict=True)]
    sys.stdout.write(json.dumps({"start_s": start_s, "loop_s": loops}) + "\n")


if __name__ == "__main__":
    main()
