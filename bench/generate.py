"""Compares Lengthwise with other ways to generate, on real review prompts: generated tokens per CPU second.

    python -m bench.generate [--rows 160] [--rounds 2] [--pairs NAME ...] [--model DIR]

SmolLM2-135M-Instruct answers one question about each review, greedily, in at most 48 tokens. Every contestant is a
process of its own that reads Parquet and writes Parquet; its whole CPU time counts, workers included.

Two run at a time on one core, which each takes for some milliseconds at a time, so that a busy moment of the machine
hits both alike; they change cores every round, and are compared within such a pair: Lengthwise as the command line runs
it (target `openvino`) with OpenVINO GenAI used directly, and with transformers' `generate` over batches of sorted
prompts; on a stratified share of the rows target `openvino-slots` with GenAI. Medians over the rounds are taken.

The others get the prompts as token ids; Lengthwise renders and tokenises its own. As in `bench.quick`, what a night
costs before its first row (processes, imports, loading; for Lengthwise measured on a night of eight rows) is told apart
from the rows, which are what a large night costs. Conversion and compilation happen before the clock starts.
"""  # fmt: skip

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.generators import NEW_TOKENS, REPETITION_PENALTY, write_ir
from bench.pinned import Cores
from bench.quick import stratified
from bench.rows import write_night
from demo.chat_model import build_chat_model
from demo.nights import choose_rows

FLOW, SLOTS, GENAI, TRANSFORMERS = (
    "Lengthwise, openvino", "Lengthwise, openvino-slots", "OpenVINO GenAI, directly", "transformers, bf16, sorted",
)  # fmt: skip
TARGETS = {FLOW: "openvino", SLOTS: "openvino-slots"}


@dataclass(frozen=True, slots=True)
class Pair:
    """Who runs at the same time, over which rows, and how many times as fast as the other ours is to be."""

    name: str
    own: str
    other: str
    share: int = 1
    """Every so manieth row."""
    goal: float | None = None

    @property
    def ds(self) -> str:
        """The night with these rows."""
        return ALL if self.share == 1 else f"2026-01-{self.share:02d}"


PAIRS = (
    Pair("genai", FLOW, GENAI, goal=0.97),
    Pair("transformers", FLOW, TRANSFORMERS, goal=5.0),
    Pair("slots", SLOTS, GENAI, share=4),
)
START_ROWS = 8
MAX_LENGTH = 512
ALL, START = "2026-01-01", "2026-02-01"
"""Nights of all rows, and of START_ROWS."""
TEMPLATE = "What did this person think of the movie? Answer in one sentence.\n\n{text}"

JOB = """\
name: bench_generate
task: generate
target: {target}
precision: bf16
model: {{uri: {model}}}
input: {{uri: "{nights}/ds={{ds}}/", template: {template}, id: id}}
max_length: {max_length}
max_graphs: 2
generate: {{max_new_tokens: {new_tokens}, repetition_penalty: {penalty}}}
workers: 1
output: {{uri: {output}}}
"""


@dataclass(frozen=True, slots=True)
class Result:
    """What one run of a contestant took, in CPU seconds."""

    start_s: float
    loop_s: float
    tokens: int
    """Generated ones."""

    @property
    def rate(self) -> float:
        """Generated tokens per CPU second of the rows."""
        return self.tokens / self.loop_s

    @property
    def whole_rate(self) -> float:
        return self.tokens / (self.start_s + self.loop_s)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where things lie, and the cores to measure on."""

    folder: Path
    model: Path
    cores: tuple[int, ...]
    pairs: tuple[Pair, ...]

    @property
    def targets(self) -> tuple[str, ...]:
        """Ways of Lengthwise that run."""
        return tuple(who for who in TARGETS if who in {pair.own for pair in self.pairs})

    def pinned(self, turn: int) -> Cores:
        return Cores(self.folder, (self.cores[turn % len(self.cores)],))

    def night(self, ds: str) -> Path:
        return self.folder / "nights" / f"ds={ds}"

    def output(self, who: str) -> Path:
        return self.folder / f"output-{TARGETS[who]}"

    def said(self, who: str, ds: str) -> Path:
        """Texts of a contestant that is not Lengthwise."""
        return self.folder / f"{who}-{ds}.parquet"


def prepare(bench: Bench, rows: int, say: Callable[[str], None]) -> None:
    """Rows, and what exists before any night: conversions, plans, artifacts. Unmeasured."""
    write_ir(bench.model)
    texts = short_enough(bench.model, rows)
    for ds, share in {ALL: 1, **{pair.ds: pair.share for pair in bench.pairs}}.items():
        write_prompts(bench.model, stratified(texts, max(START_ROWS, rows // share)), bench.night(ds))
    write_prompts(bench.model, stratified(texts, START_ROWS), bench.night(START))
    say(f"{rows} rows and the model for GenAI are ready")
    for who in bench.targets:
        target = TARGETS[who]
        job = JOB.format(
            target=target, model=bench.model, nights=bench.folder / "nights", template=json.dumps(TEMPLATE),
            max_length=MAX_LENGTH, new_tokens=NEW_TOKENS, penalty=REPETITION_PENALTY, output=bench.output(who),
        )  # fmt: skip
        (bench.folder / f"{target}.yaml").write_text(job)
    with ThreadPoolExecutor(len(bench.cores)) as pool:
        runs = [
            pool.submit(bench.pinned(turn).run, lengthwise(bench, who, "compile", ALL))
            for turn, who in enumerate(bench.targets)
        ]
        for who, run in zip(bench.targets, runs, strict=True):
            run.result()
            say(f"{who}: planned, compiled and proven")


def short_enough(model: Path, count: int) -> list[str]:
    """Reviews of the demo's first night whose prompts fit MAX_LENGTH: nobody's truncation is compared."""
    texts = [review.text for review in choose_rows()["2026-11-24"]]
    fitting = [text for text, ids in zip(texts, prompts_of(model, texts), strict=True) if len(ids) <= MAX_LENGTH]
    return stratified(fitting, count)


def prompts_of(model: Path, texts: list[str]) -> list[list[int]]:
    """Token ids by transformers' chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    chats = [[{"role": "user", "content": TEMPLATE.format(text=text)}] for text in texts]
    found: list[list[int]] = [tokenizer.apply_chat_template(chat, add_generation_prompt=True) for chat in chats]
    return found


def write_prompts(model: Path, texts: list[str], folder: Path) -> None:
    """As write_night, with the prompts' token ids."""
    path = write_night(texts, folder)
    table = pq.read_table(path)
    tokens = pa.array(prompts_of(model, texts), pa.list_(pa.int32()))
    pq.write_table(table.append_column("token_ids", tokens), path)


def lengthwise(bench: Bench, who: str, command: str, ds: str) -> list[str]:
    job = bench.folder / f"{TARGETS[who]}.yaml"
    fresh = ["--fresh"] if command == "run" else []
    return [sys.executable, "-m", "pipeline", command, str(job), "--ds", ds, *fresh]


def measure(bench: Bench, who: str, ds: str, cores: Cores) -> Result:
    """One run of a contestant over the rows of a night."""
    if who in TARGETS:
        return own_result(bench, who, ds, cores)
    name = {GENAI: "GenAI", TRANSFORMERS: "transformers"}[who]
    files = [str(bench.night(ds) / "rows.parquet"), str(bench.said(who, ds))]
    _, last = cores.run([sys.executable, "-m", "bench.generators", name, str(bench.model), *files])
    tokens = sum(pq.read_table(bench.said(who, ds))["output_tokens"].to_pylist())
    return Result(**json.loads(last), tokens=tokens)


def own_result(bench: Bench, who: str, ds: str, cores: Cores) -> Result:
    """A night of almost no rows, less its rows, is the start; a night's other seconds are those of its rows.

    They are at least what executing took, as the worker counted it: starts vary by more than a second.
    """
    small, _ = cores.run(lengthwise(bench, who, "run", START))
    start_s = small - report_of(bench, who, START)["infer_cpu_seconds"]
    total, _ = cores.run(lengthwise(bench, who, "run", ds))
    report = report_of(bench, who, ds)
    loop_s = max(total - start_s, report["infer_cpu_seconds"])
    return Result(start_s, loop_s, report["tokens"]["generated_tokens"])


def report_of(bench: Bench, who: str, ds: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((bench.output(who) / f"reports/ds={ds}/report.json").read_bytes())
    return found


def measure_rounds(bench: Bench, rounds: int, say: Callable[[str], None]) -> dict[Pair, list[tuple[Result, Result]]]:
    """Every pair once per round: own, other."""
    found: dict[Pair, list[tuple[Result, Result]]] = defaultdict(list)
    with ThreadPoolExecutor(2) as pool:
        for turn in range(rounds):
            for pair in bench.pairs:
                own = pool.submit(measure, bench, pair.own, pair.ds, bench.pinned(turn))
                other = pool.submit(measure, bench, pair.other, pair.ds, bench.pinned(turn))
                found[pair].append((own.result(), other.result()))
                rates = f"{pair.own} {own.result().rate:.1f}, {pair.other} {other.result().rate:.1f}"
                say(f"round {turn + 1} of {rounds}: {rates} tokens per CPU second")
    return found


def medians(results: Sequence[Result]) -> Result:
    return Result(
        statistics.median(one.start_s for one in results),
        statistics.median(one.loop_s for one in results),
        round(statistics.median(one.tokens for one in results)),
    )


def same_texts(bench: Bench, pair: Pair) -> float:
    """Share of the rows with the same text. Raises RuntimeError when rows are missing or prompts differ."""
    columns = ["row_id", "text", "prompt_tokens"]
    folder = bench.output(pair.own) / "predictions" / f"ds={pair.ds}"
    ours = {row["row_id"]: row for row in pq.read_table(folder, columns=columns, partitioning=None).to_pylist()}
    theirs = pq.read_table(bench.said(pair.other, pair.ds), columns=["id", "text"]).to_pylist()
    prompts = pq.read_table(bench.night(pair.ds) / "rows.parquet", columns=["id", "token_ids"]).to_pylist()
    if [row["id"] for row in prompts if ours[row["id"]]["prompt_tokens"] != len(row["token_ids"])]:
        raise RuntimeError(f"{pair.own}: the prompts are not those of transformers' chat template")
    if len(ours) != len(theirs):
        raise RuntimeError(f"{pair.own}: {len(ours)} rows came back of {len(theirs)}")
    return float(sum(ours[row["id"]]["text"] == row["text"] for row in theirs)) / len(theirs)


@dataclass(frozen=True, slots=True)
class Line:
    """What a pair came to."""

    pair: Pair
    own: Result
    other: Result
    ratio: float
    """The median over the rounds of own rate / other's rate."""
    same: float
    """Share of equal texts."""


def line_of(bench: Bench, pair: Pair, rounds: Sequence[tuple[Result, Result]]) -> Line:
    ratio = statistics.median(own.rate / other.rate for own, other in rounds)
    own, other = (medians(results) for results in zip(*rounds, strict=True))
    return Line(pair, own, other, ratio, same_texts(bench, pair))


def table_of(lines: Sequence[Line]) -> str:
    """What a person reads."""
    text = [f"{'':<28} {'start, s':>9} {'tokens':>8} {'tokens/CPU s':>13} {'with start':>11}"]
    for line in lines:
        for who, one in ((line.pair.own, line.own), (line.pair.other, line.other)):
            text.append(f"{who:<28} {one.start_s:9.2f} {one.tokens:8,} {one.rate:13.1f} {one.whole_rate:11.1f}")
        goal = "" if line.pair.goal is None else f" (goal {line.pair.goal}x)"
        text.append(f"  {line.ratio:.2f}x{goal}; {line.same:.0%} of the texts are the same\n")
    return "\n".join(text)


def main() -> int:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=2)
    names = [pair.name for pair in PAIRS]
    parser.add_argument("--pairs", nargs="+", choices=names, default=names, help="what is compared; default: all")
    parser.add_argument("--model", type=Path, help="where the converted model is or will be kept; else it is made anew")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    chosen = tuple(pair for pair in PAIRS if pair.name in args.pairs)
    began = time.monotonic()

    def say(line: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - began:4.0f} s] {line}\n")

    with tempfile.TemporaryDirectory(prefix="lengthwise-bench-") as folder:
        model = build_chat_model(args.model.resolve() if args.model else Path(folder) / "model")
        bench = Bench(Path(folder), model, tuple(sorted(os.sched_getaffinity(0))), chosen)
        prepare(bench, args.rows, say)
        rounds = measure_rounds(bench, args.rounds, say)
        lines = [line_of(bench, pair, rounds[pair]) for pair in chosen]
    sys.stdout.write(table_of(lines))
    if args.json:
        args.json.write_text(json.dumps([asdict(line) for line in lines], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
