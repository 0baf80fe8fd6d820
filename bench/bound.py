"""Measures the bound: what the rows would cost if each paid only for its real tokens, at the best speed for its length.

No batch reaches it: padding and the last partial batch cost something. How near a run comes is the planner's mark.

    python -m bench.bound MODEL

says `ready` when its graphs are compiled, executes them in turn until its input ends, and prints each pass over all of
them as JSON. It shares the core of the runs that are compared with it: a core's speed can halve for seconds when work
of others moves in beside it. What a run cost is then told by the passes that were made during that run.
"""

from __future__ import annotations

import json
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.contestants import IR_NAME, best_precision
from bench.pinned import Cores

LENGTHS = (8, 16, 32, 64, 128, 256, 512)
SLOT_TOKENS = (1024, 2048)
"""Batches of about so many tokens were fastest in every trial; smaller and much larger ones are slower."""

NICE = 4
"""It has two fifths of another process's share of the core: enough passes, and less waiting for them."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One execution of every graph."""

    ended: float
    """By time.monotonic, which all processes of a machine share."""
    seconds: list[list[float]]
    """CPU seconds per token: (LENGTHS, SLOT_TOKENS)."""


@dataclass(slots=True)
class Passes:
    """What a process beside others measured; empty until it has ended."""

    made: list[Pass] = field(default_factory=list)

    def seconds_per_token(self, began: float = 0.0, ended: float = float("inf")) -> list[float]:
        """Means for each of LENGTHS over the passes of that time, of the batch size that is better."""
        chosen = [one.seconds for one in self.made if began <= one.ended <= ended] or [self.made[-1].seconds]
        return [min(map(statistics.mean, zip(*by_pass, strict=True))) for by_pass in zip(*chosen, strict=True)]


@contextmanager
def passes_beside(model_dir: Path, cores: Cores) -> Iterator[Passes]:
    """Measure on these cores while the body runs; what it gives is filled when the body has ended."""
    found = Passes()
    command = ["nice", "-n", str(NICE), *cores.pinning([sys.executable, "-m", "bench.bound", str(model_dir)])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            if child.stdout is None or child.stdout.readline() != "ready\n":
                raise RuntimeError(f"{' '.join(command)} ended before it measured anything")
            yield found
            found.made += [Pass(*one) for one in json.loads(child.communicate()[0])]
        finally:
            child.kill()


def measure(model_dir: Path) -> list[tuple[float, list[list[float]]]]:
    """Passes, as Pass has them, until the standard input ends."""
    graphs = [[_graph(model_dir, max(1, slots // length), length) for slots in SLOT_TOKENS] for length in LENGTHS]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    passes: list[tuple[float, list[list[float]]]] = []
    while not passes or not select.select([sys.stdin], [], [], 0)[0]:
        seconds = [[execute() for execute in row] for row in graphs]
        passes.append((time.monotonic(), seconds))
    return passes


def _graph(model_dir: Path, batch: int, length: int) -> Callable[[], float]:
    """What executes a batch of that shape, after a first time, and returns its CPU seconds per token."""
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

    def execute() -> float:
        started = time.process_time()
        request.infer(inputs)
        return (time.process_time() - started) / (batch * length)

    execute()
    return execute


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
    sys.stdout.write(json.dumps(measure(Path(sys.argv[1]))) + "\n")
