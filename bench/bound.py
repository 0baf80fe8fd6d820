"""Measures the bound: what the rows would cost if each paid only for its real tokens, at the best speed for its length.

No batch reaches it: padding and the last partial batch cost something. How near a run comes is the planner's mark.

    python -m bench.bound MODEL

prints CPU seconds per token for each of LENGTHS, as JSON. Runs are measured while the other core is busy; so is this.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench.contestants import IR_NAME, best_precision
from bench.pinned import Cores

LENGTHS = (8, 16, 32, 64, 128, 256, 512)
SLOT_TOKENS = (1024, 2048)
"""Batches of about so many tokens were fastest in every trial; smaller and much larger ones are slower."""
REPEATS = 5


def seconds_side_by_side(model_dir: Path, cores: Sequence[Cores]) -> list[float]:
    """`seconds_per_token` measured on all of these cores at the same time; the median of what they say."""
    command = [sys.executable, "-m", "bench.bound", str(model_dir)]
    with ThreadPoolExecutor(len(cores)) as pool:
        said = list(pool.map(lambda one: json.loads(one.run(command)[1]), cores))
    return [statistics.median(speeds) for speeds in zip(*said, strict=True)]


def seconds_per_token(model_dir: Path) -> list[float]:
    """Best measured CPU seconds per token of a full static batch, for each of LENGTHS."""
    return [min(_measure(model_dir, max(1, slots // length), length) for slots in SLOT_TOKENS) for length in LENGTHS]


def _measure(model_dir: Path, batch: int, length: int) -> float:
    import openvino as ov

    core = ov.Core()
    model = core.read_model(str(model_dir / IR_NAME))
    model.reshape({port.any_name: [batch, length] for port in model.inputs})
    options: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": 1,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": best_precision(core),
    }
    request = core.compile_model(model, "CPU", options).create_infer_request()
    ones = np.ones((batch, length), dtype=np.int64)
    inputs = {"input_ids": ones * 2023, "attention_mask": ones, "token_type_ids": ones * 0}
    request.infer(inputs)
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        request.infer(inputs)
        seconds.append(time.process_time() - start)
    return statistics.median(seconds) / (batch * length)


def bound_s(lengths: Sequence[int], speeds: Sequence[float]) -> float:
    """CPU seconds of the bound for rows of these token counts; between measured lengths the speed is interpolated."""
    rows = np.asarray(lengths, dtype=np.float64)
    return float((rows * np.interp(rows, LENGTHS, speeds)).sum())


def token_lengths(model_dir: Path, texts: list[str]) -> list[int]:
    """Token counts, cut at 512."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    tokenizer.enable_truncation(512)
    return [len(encoding.ids) for encoding in tokenizer.encode_batch_fast(texts)]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(seconds_per_token(Path(sys.argv[1]))) + "\n")
