"""How fast a decoder writes: time to first token, latency and throughput of full sets of slots, without job or store.

Graphs are compiled into a folder of their own and thrown away: they are timed, not proven, and no run may load them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compile.errors import ModelError
from compile.generation.requests import Request, TextRules
from compile.generation.sampling import Sampling
from compile.generation.static import as_generator
from compile.model import ModelInfo, read_model
from compile.shapes import Shape
from compile.targets.decoders import DecoderTarget, Generator, load_decoder_target
from pipeline.errors import JobError

FIGURES = {
    "encoding_s": "seconds from handing over one prompt, alone, to its first new token; median of the repeats",
    "latency_p50_s": "seconds from handing over a full set of slots to a text's last token; median over all texts",
    "latency_p95_s": "the same, 95th percentile",
    "token_s": "seconds between two new tokens of a text: latency_p50_s, less the seconds until each prompt of the set "
    "has its first token, by the new tokens after the first",
    "generated_tokens_per_second": "new tokens of the set, by the seconds until its last text ended; median",
    "total_tokens_per_second": "prompt and new tokens of the set, by the same seconds",
}
"""What is measured, on one core by the wall clock -> its definition."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Question:
    """What to measure."""

    target: str
    precision: str
    """Of the target, or auto."""
    prompt_tokens: int
    new_tokens: tuple[int, ...]
    slots: tuple[int, ...]
    repeats: int


@dataclass(frozen=True, slots=True)
class Speed:
    """One line of the table; see FIGURES."""

    slots: int
    prompt_tokens: int
    new_tokens: int
    encoding_s: float
    latency_p50_s: float
    latency_p95_s: float
    token_s: float | None
    """None for texts of one token."""
    generated_tokens_per_second: float
    total_tokens_per_second: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_speeds(model_dir: Path, question: Question, say: Say) -> Iterator[Speed]:
    """A line for each number of new tokens and of slots.

    Raises JobError before anything long, CompileError, DeviceError. `say` takes lines of progress.
    """
    model = check(model_dir, question)
    with tempfile.TemporaryDirectory(prefix="lengthwise-speed-") as work:
        for new_tokens in question.new_tokens:
            target = load_decoder_target(question.target, new_tokens)
            for slots in question.slots:
                yield _shape_speed(target, model_dir, model, Path(work), slots, question, say)


def _shape_speed(
    target: DecoderTarget, model_dir: Path, model: ModelInfo, work: Path, slots: int, question: Question, say: Say
) -> Speed:
    shape, precision = Shape(length=question.prompt_tokens, batch=slots), chosen_precision(question)
    name = f"{shape} + {target.new_tokens} new tokens"
    say(f"{name}: compiling")
    prepared = target.prepare(model_dir, work, precision, [])
    with tempfile.TemporaryDirectory(dir=work) as out_dir:  # a copy of the weights: one at a time
        target.compile(prepared, shape, precision, Path(out_dir))
        generator = as_generator(target.load(Path(out_dir), shape, precision))
        say(f"{name}: measuring")
        return _speed(generator, shape, target.new_tokens, model.vocab_size, question.repeats, say)


def check(model_dir: Path, question: Question) -> ModelInfo:
    """The model. Raises JobError that names the argument when it, the target or a number does not fit."""
    try:
        model = read_model(model_dir, classifier=False)
        target = load_decoder_target(question.target, max(question.new_tokens))
    except ModelError as error:
        raise JobError(f"MODEL {model_dir}: {error}") from error
    except ValueError as error:
        raise JobError(f"--target: {error}") from error
    reason = target.unavailable()
    if reason:
        raise JobError(f"--target {target.name} cannot run here: {reason}")
    unsupported = target.supports(chosen_precision(question))
    if unsupported:
        raise JobError(f"--precision: {unsupported}")
    positions = question.prompt_tokens + max(question.new_tokens)
    if positions > model.max_positions:
        raise JobError(
            f"--prompt {question.prompt_tokens} and --new {max(question.new_tokens)} make {positions} tokens, more "
            f"than the {model.max_positions} positions of {model_dir}; lower one of them"
        )
    return model


def chosen_precision(question: Question) -> str:
    """The question's, or what its target takes for auto on this machine."""
    return (
        load_decoder_target(question.target, 1).default_precision()
        if question.precision == "auto"
        else question.precision
    )


def _speed(generator: Generator, shape: Shape, new_tokens: int, vocab_size: int, repeats: int, say: Say) -> Speed:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, vocab_size, shape.length) for _ in range(shape.batch)]
    requests = [Request(str(row), tokens) for row, tokens in enumerate(rows)]
    _ends(generator, requests[:1], min(2, new_tokens))  # warms up
    encoding = statistics.median(_ends(generator, requests[:1], 1)[-1] for _ in range(repeats))
    prefill = statistics.median(_ends(generator, requests, 1)[-1] for _ in range(repeats))
    sets = []
    for repeat in range(repeats):
        sets.append(_ends(generator, requests, new_tokens))
        say(f"set {repeat + 1} of {repeats}: {sets[-1][-1]:.2f} s")
    latencies = np.concatenate(sets)
    whole = statistics.median(ends[-1] for ends in sets)
    p50, p95 = (float(np.quantile(latencies, share)) for share in (0.5, 0.95))
    return Speed(
        slots=shape.batch,
        prompt_tokens=shape.length,
        new_tokens=new_tokens,
        encoding_s=encoding,
        latency_p50_s=p50,
        latency_p95_s=p95,
        token_s=max(0.0, p50 - prefill) / (new_tokens - 1) if new_tokens > 1 else None,
        generated_tokens_per_second=shape.batch * new_tokens / whole,
        total_tokens_per_second=shape.batch * (shape.length + new_tokens) / whole,
    )


def _ends(generator: Generator, requests: Sequence[Request], new_tokens: int) -> list[float]:
    """Seconds until each text's last token, ascending. No token ends a text early: all have `new_tokens`."""
    started, ends = time.perf_counter(), []
    for _ in generator.generate(requests, Sampling(max_new_tokens=new_tokens), TextRules()):
        ends.append(time.perf_counter() - started)
    return ends
