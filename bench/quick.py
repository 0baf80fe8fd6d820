"""Compares Lengthwise with what one would otherwise write, in CPU seconds, in about four minutes.

    python -m bench.quick [--json FILE]

Every contestant is a process of its own that reads Parquet and writes Parquet. Its whole CPU time counts, workers
included. Lengthwise, the expert's loop and the bound run at the same time on the same core, which each takes for some
milliseconds at a time, so that a busy moment of the machine hits all three alike, and change cores every round. Medians
are taken. `transformers.pipeline` runs with its defaults, which take every core, and once more pinned to one, with
nothing of ours beside it; it runs over a stratified sample, for all rows would take too long.

What a night costs before its first row is told apart from the rows, which are what a large night costs: imports and
loading the model, and for Lengthwise a night of eight rows, and loading each of its shapes once. Conversion and
compilation happen before the clock starts: they are paid once, not every night.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.bound import bound_s, passes_beside, token_lengths
from bench.comparison import BOUND, EXECUTING, EXPERT, LENGTHWISE, PIPELINES, Answers, Cost, table
from bench.contestants import write_ir
from bench.pinned import Cores
from bench.rows import SETS, write_night
from demo.sentiment_model import build_sentiment_model

ROWS = {"tweets": 3_000, "reviews": 240}
SAMPLE_ROWS = {"tweets": 100, "reviews": 24}
START_ROWS = 8
SMALL_NIGHT = "2026-02-01"
ROUNDS = 2

JOB = """\
name: bench_{name}
task: classify
target: openvino
precision: auto
model: {{uri: {model}}}
input: {{uri: "{nights}/ds={{ds}}/", text: text, id: id}}
shapes: auto
max_length: 512
truncation: head
workers: 1
output: {{uri: {output}}}
"""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where things lie, and the cores to measure on."""

    folder: Path
    cores: tuple[int, ...]

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def job(self, name: str) -> Path:
        return self.folder / f"{name}.yaml"

    def rows(self, name: str, ds: str) -> Path:
        return self.folder / name / f"ds={ds}" / "rows.parquet"

    def said(self, name: str, who: str) -> Path:
        """What a contestant predicts."""
        return self.folder / f"{name}, {who}.parquet"

    def pinned(self, turn: int) -> Cores:
        """One core; the next turn's is another one, where there is another one."""
        return Cores(self.folder, (self.cores[turn % len(self.cores)],))


def prepare(bench: Bench) -> None:
    """The model, its conversion, and Lengthwise's plan and artifacts: what exists before any night. Unmeasured."""
    build_sentiment_model(bench.model)
    write_ir(bench.model)
    with ThreadPoolExecutor(len(bench.cores)) as pool:
        list(pool.map(lambda item: prepare_set(bench, item[1], bench.pinned(item[0])), enumerate(SETS)))


def prepare_set(bench: Bench, name: str, cores: Cores) -> None:
    """The nights of one set, and Lengthwise's artifacts for the shapes that it plans for them."""
    rows = SETS[name]()[: ROWS[name]]
    write_night(stratified(rows, SAMPLE_ROWS[name]), bench.rows(name, "sample").parent)
    text = JOB.format(name=name, model=bench.model, nights=bench.folder / name, output=bench.folder / f"{name}-output")
    bench.job(name).write_text(text)
    write_night(stratified(rows, START_ROWS), bench.rows(name, SMALL_NIGHT).parent)
    for turn in range(ROUNDS):
        write_night(rows, bench.rows(name, full_night(turn)).parent)
    cores.run([sys.executable, "-m", "pipeline", "compile", str(bench.job(name)), "--ds", full_night(0)])


def full_night(turn: int) -> str:
    """Its date: every round has rows of its own, for a night that was published is not run again."""
    return f"2026-01-{turn + 1:02d}"


def stratified(texts: list[str], count: int) -> list[str]:
    """`count` texts, evenly spread over the lengths and in no order of length."""
    ranked = sorted(texts, key=len)
    picked = {ranked[(2 * number + 1) * len(ranked) // (2 * count)] for number in range(count)}
    return [text for text in texts if text in picked]


@dataclass(frozen=True, slots=True)
class Night:
    """One night of Lengthwise: CPU seconds of all its processes, and what its report counted of them."""

    total_s: float
    load_s: float
    """Of loading shapes."""
    execute_s: float
    """Of executing batches."""


def lengthwise(bench: Bench, name: str, ds: str, cores: Cores) -> Night:
    """One night as the command line runs it."""
    total, _ = cores.run([sys.executable, "-m", "pipeline", "run", str(bench.job(name)), "--ds", ds])
    report: dict[str, Any] = json.loads((bench.folder / f"{name}-output/reports/ds={ds}/report.json").read_bytes())
    return Night(total, report["infer_load_seconds"], report["infer_cpu_seconds"])


def contestant(bench: Bench, who: str, inputs: dict[str, Path], cores: Cores) -> dict[str, Cost]:
    """CPU seconds of one of CONTESTANTS for each set, as it counted them itself."""
    files = [str(path) for name, rows in inputs.items() for path in (rows, bench.said(name, who))]
    _, last = cores.run([sys.executable, "-m", "bench.contestants", who, str(bench.model), *files])
    own = json.loads(last)
    return {name: Cost(own["start_s"], loop) for name, loop in zip(inputs, own["loop_s"], strict=True)}


@dataclass(frozen=True, slots=True)
class Started:
    """The night of almost no rows, and what the bound cost at that time."""

    night: Night
    bound_s: float

    @property
    def seconds(self) -> float:
        """All but its batches and its loading."""
        return self.night.total_s - self.night.load_s - self.night.execute_s


@dataclass(frozen=True, slots=True)
class Round:
    """What ran at the same time on one core. Each is told in bounds of its own time."""

    night: Night
    night_bound_s: float
    start: Started
    expert: Cost
    expert_bound_s: float

    @property
    def own(self) -> Cost:
        """What the small night takes is the start, and so is loading, as it is the other's.

        The rows cost at least what executing took, as the worker counted it: starts vary by more than a second.
        """
        start = self.start.seconds * self.night_bound_s / self.start.bound_s
        rows = max(self.night.total_s - self.night.load_s - start, self.night.execute_s)
        return Cost(self.night.total_s - rows, rows)

    def costs(self) -> dict[str, Cost]:
        """Of all, at the speed that the core had during Lengthwise's night."""
        speed = self.night_bound_s / self.expert_bound_s
        return {
            LENGTHWISE: self.own,
            EXPERT: Cost(self.expert.start_s * speed, self.expert.loop_s * speed),
            EXECUTING: Cost(0.0, self.night.execute_s),
            BOUND: Cost(0.0, self.night_bound_s),
        }


def measure_round(bench: Bench, name: str, turn: int, start: Started | None) -> Round:
    """One round of one set; the small night runs unless that was measured before."""
    cores = bench.pinned(turn)
    rows, lengths = bench.rows(name, full_night(turn)), token_lengths(bench.model, SETS[name]()[: ROWS[name]])
    with passes_beside(bench.model, cores) as passes, ThreadPoolExecutor(1) as pool:
        loop = pool.submit(timed, contestant, bench, EXPERT, {name: rows}, cores)
        small = None if start else timed(lengthwise, bench, name, SMALL_NIGHT, cores)
        night, *night_time = timed(lengthwise, bench, name, full_night(turn), cores)
        expert, *expert_time = loop.result()

    def bound(time: list[float]) -> float:
        return bound_s(lengths, passes.seconds_per_token(*time))

    if small:
        start = Started(small[0], bound(list(small[1:])))
    assert start
    return Round(night, bound(night_time), start, expert[name], bound(expert_time))


def timed(call: Callable[..., Any], *arguments: Any) -> tuple[Any, float, float]:
    """What it returns, and when it began and ended, by time.monotonic."""
    began = time.monotonic()
    return call(*arguments), began, time.monotonic()


def measure_rounds(bench: Bench, say: Callable[[str], None]) -> dict[str, list[Round]]:
    """All rounds by set; the other core is idle."""
    found: dict[str, list[Round]] = {name: [] for name in SETS}
    for turn in range(ROUNDS):
        for name, rounds in found.items():
            rounds.append(measure_round(bench, name, turn, rounds[0].start if rounds else None))
            say(f"{name}, round {turn + 1} of {ROUNDS}")
    return found


def measure_pipelines(bench: Bench, say: Callable[[str], None]) -> dict[str, dict[str, Cost]]:
    """Each of PIPELINES over the samples: those that take every core alone, the pinned ones side by side."""
    samples = {name: bench.rows(name, "sample") for name in SETS}
    found = {}
    for label, (who, pinned) in PIPELINES.items():
        if not pinned:
            found[label] = contestant(bench, who, samples, Cores(bench.folder, bench.cores))
            say(label)
    with ThreadPoolExecutor(len(bench.cores)) as pool:
        runs = {
            label: pool.submit(contestant, bench, who, samples, bench.pinned(turn))
            for turn, (label, (who, pinned)) in enumerate(PIPELINES.items())
            if pinned
        }
        found |= {label: run.result() for label, run in runs.items()}
    say("the same, on one core each")
    return found


def per_thousand(costs: list[Cost], rows: int) -> Cost:
    """Medians, the loop for a thousand rows."""
    return Cost(
        statistics.median(cost.start_s for cost in costs),
        statistics.median(cost.loop_s for cost in costs) * 1000 / rows,
    )


def measure(bench: Bench, say: Callable[[str], None]) -> Answers:
    """Each set and contestant: seconds to start, and for a thousand rows."""
    answers: Answers = {name: {} for name in SETS}
    for label, by_set in measure_pipelines(bench, say).items():
        for name, cost in by_set.items():
            answers[name][label] = per_thousand([cost], SAMPLE_ROWS[name])
    for name, rounds in measure_rounds(bench, say).items():
        costs = [one.costs() for one in rounds]
        answers[name] |= {who: per_thousand([each[who] for each in costs], ROWS[name]) for who in costs[0]}
    return answers


def check_agreement(bench: Bench) -> None:
    """Speed counts only for the same answers: raises RuntimeError when labels differ in more than one row in 200."""
    for name in SETS:
        expert = pq.read_table(bench.said(name, EXPERT), columns=["id", "label"]).to_pylist()
        folder = bench.folder / f"{name}-output" / "predictions" / f"ds={full_night(ROUNDS - 1)}"
        ours = pq.read_table(folder, columns=["row_id", "label"], partitioning=None).to_pylist()
        labels = {row["row_id"]: row["label"] for row in ours}
        differing = sum(labels.get(row["id"]) != row["label"] for row in expert)
        if len(labels) != len(expert) or differing > len(expert) / 200:
            raise RuntimeError(f"{name}: {differing} of {len(expert)} labels differ; {len(labels)} rows came back")


def main() -> int:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    began = time.monotonic()

    def say(line: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - began:4.0f} s] {line}\n")

    with tempfile.TemporaryDirectory(prefix="lengthwise-bench-") as folder:
        bench = Bench(Path(folder), tuple(sorted(os.sched_getaffinity(0))))
        prepare(bench)
        say("model, nights, plans and artifacts are ready")
        answers = measure(bench, say)
        check_agreement(bench)
    sys.stdout.write(table(answers) + "\n")
    if args.json:
        plain = {name: {who: asdict(cost) for who, cost in found.items()} for name, found in answers.items()}
        args.json.write_text(json.dumps(plain, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
