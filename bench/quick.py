"""Compares Lengthwise with what one would otherwise write, in CPU seconds on one pinned core, within four minutes.

    python -m bench.quick [--json FILE]

Every contestant is a process of its own that reads Parquet and writes Parquet. Its whole CPU time counts, workers
included. Starting (imports, loading the model) is told apart from the rows, which are what a large night costs: of
Lengthwise a night of almost no rows is the start, the others count by themselves. Runs are interleaved, so that a busy
moment of the machine hits everyone, and medians are taken. Conversion and compilation happen before the clock starts:
they are paid once, not every night. transformers runs over a stratified sample: all rows would take too long.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path

import pyarrow.parquet as pq

from bench.bound import bound_s, seconds_per_token, token_lengths
from bench.contestants import CONTESTANTS, write_ir
from bench.rows import SETS, write_night
from demo.sentiment_model import build_sentiment_model

ROWS = {"tweets": 4_000, "reviews": 300}
SAMPLE_ROWS = {"tweets": 300, "reviews": 40}
START_ROWS = 8
ROUNDS = 3
LENGTHWISE = "Lengthwise"
EXPERT = "OpenVINO, dynamic, sorted"
BOUND = "bound"
EXECUTING = "Lengthwise, executing batches"
GOALS = {"transformers pipeline, defaults": 8.0, "transformers pipeline, bf16": 3.5, EXPERT: 1.03}

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
output: {{uri: {output}}}
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of a contestant."""

    start_s: float
    """Imports and loading: paid once a night."""
    loop_s: float
    """The rows: of a run when measured, of a thousand rows in the answers."""


Answers = dict[str, dict[str, Cost]]
"""By set, by contestant."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where things lie, and the core that everything measured is pinned to."""

    folder: Path
    core: int

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def job(self, name: str) -> Path:
        return self.folder / f"{name}.yaml"

    def night(self, name: str, ds: str) -> Path:
        return self.folder / name / f"ds={ds}"


def cpu_seconds(bench: Bench, command: list[str]) -> tuple[float, str]:
    """User and system seconds of a process and its children, and its last line. Raises RuntimeError when it fails."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "LENGTHWISE_CACHE": str(bench.folder / "cache"),
        "LENGTHWISE_LOCK_DIR": str(bench.folder / "locks"),
    }
    log = bench.folder / f"core-{bench.core}.log"
    with log.open("wb") as output:
        pinned = ["taskset", "-c", str(bench.core), *command]
        child = subprocess.Popen(pinned, env=environment, stdout=output, stderr=output)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    said = log.read_text().strip()
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}:\n{said[-2000:]}")
    return usage.ru_utime + usage.ru_stime, said.rpartition("\n")[2]


def prepare(folder: Path, cores: set[int]) -> None:
    """The model, its conversion, and Lengthwise's plan and artifacts: what exists before any night. Unmeasured."""
    build_sentiment_model(folder / "model")
    write_ir(folder / "model")
    benches = cycle(Bench(folder, core) for core in sorted(cores))
    with ThreadPoolExecutor(len(cores)) as pool:
        for warm_up in [pool.submit(prepare_set, bench, name) for bench, name in zip(benches, SETS, strict=False)]:
            warm_up.result()


def prepare_set(bench: Bench, name: str) -> None:
    """The nights of one set, and a first run of Lengthwise over one of them."""
    texts = SETS[name]
    rows = texts()[: ROWS[name]]
    write_night(stratified(rows, SAMPLE_ROWS[name]), bench.folder / f"{name}-sample")
    nights = bench.folder / name
    bench.job(name).write_text(
        JOB.format(name=name, model=bench.model, nights=nights, output=bench.folder / f"{name}-output")
    )
    for number in range(ROUNDS + 1):
        write_night(rows, bench.night(name, f"2026-01-{number + 1:02d}"))
        write_night(stratified(rows, START_ROWS), bench.night(name, f"2026-02-{number + 1:02d}"))
    lengthwise(bench, name, "2026-01-01")


def stratified(texts: list[str], count: int) -> list[str]:
    """`count` texts, evenly spread over the lengths and in no order of length."""
    ranked = sorted(texts, key=len)
    picked = {ranked[(2 * number + 1) * len(ranked) // (2 * count)] for number in range(count)}
    return [text for text in texts if text in picked]


def lengthwise(bench: Bench, name: str, ds: str) -> float:
    """CPU seconds of one night with all its processes, as the command line runs it."""
    return cpu_seconds(bench, [sys.executable, "-m", "pipeline", "run", str(bench.job(name)), "--ds", ds])[0]


def contestant(bench: Bench, name: str, who: str, rows: Path) -> Cost:
    """CPU seconds of one of CONTESTANTS, as it counted them itself."""
    output = str(bench.folder / f"{name}-said.parquet")
    _, last = cpu_seconds(bench, [sys.executable, "-m", "bench.contestants", who, str(bench.model), str(rows), output])
    own: dict[str, float] = json.loads(last)
    return Cost(own["start_s"], own["loop_s"])


def measure(bench: Bench, say: Callable[[str], None]) -> Answers:
    """Each set and contestant: seconds to start, and for a thousand further rows."""
    starts: dict[str, list[float]] = defaultdict(list)
    found: dict[tuple[str, str], list[Cost]] = defaultdict(list)
    for number in range(ROUNDS):
        day = f"{number + 2:02d}"
        for name in SETS:
            starts[name].append(lengthwise(bench, name, f"2026-02-{day}"))
            found[name, LENGTHWISE].append(Cost(0.0, lengthwise(bench, name, f"2026-01-{day}")))
            night = bench.night(name, f"2026-01-{day}") / "rows.parquet"
            found[name, EXPERT].append(contestant(bench, name, EXPERT, night))
            if number:  # transformers runs once: its distance is too large for noise to matter
                continue
            for who in sorted(CONTESTANTS.keys() - {EXPERT}):
                sample = bench.folder / f"{name}-sample" / "rows.parquet"
                found[name, who].append(contestant(bench, name, who, sample))
        say(f"round {number + 1} of {ROUNDS}")
    answers: Answers = {name: {} for name in SETS}
    for (name, who), costs in found.items():
        rows = ROWS[name] if who in (LENGTHWISE, EXPERT) else SAMPLE_ROWS[name]
        start_s, loop_s = (statistics.median(getattr(cost, part) for cost in costs) for part in ("start_s", "loop_s"))
        if who == LENGTHWISE:  # from outside, start and loop are told apart by a night of almost no rows
            start_s = statistics.median(starts[name])
            rows, loop_s = rows - START_ROWS, loop_s - start_s
        answers[name][who] = Cost(start_s, loop_s * 1000 / rows)
    return answers


def add_bounds(bench: Bench, answers: Answers) -> None:
    """Add to each set the bound, and what Lengthwise reported of executing batches, as if they were contestants."""
    os.sched_setaffinity(0, {bench.core})
    speeds = seconds_per_token(bench.model)
    for name, texts in SETS.items():
        seconds = bound_s(token_lengths(bench.model, texts()[: ROWS[name]]), speeds)
        reports = sorted((bench.folder / f"{name}-output" / "reports").glob("ds=2026-01-*/report.json"))[1:]
        executing = statistics.median(json.loads(path.read_bytes())["infer_execute_seconds"] for path in reports)
        for who, value in ((BOUND, seconds), (EXECUTING, executing)):
            answers[name][who] = Cost(0.0, 1000 * value / ROWS[name])


def check_agreement(bench: Bench) -> None:
    """Speed counts only for the same answers: raises RuntimeError when labels differ in more than one row in 200."""
    for name in SETS:
        expert = pq.read_table(bench.folder / f"{name}-said.parquet", columns=["id", "label"]).to_pylist()
        folder = bench.folder / f"{name}-output" / "predictions" / f"ds=2026-01-{ROUNDS + 1:02d}"
        ours = pq.read_table(folder, columns=["row_id", "label"], partitioning=None).to_pylist()
        labels = {row["row_id"]: row["label"] for row in ours}
        differing = sum(labels.get(row["id"]) != row["label"] for row in expert)
        if len(labels) != len(expert) or differing > len(expert) / 200:
            raise RuntimeError(f"{name}: {differing} of {len(expert)} labels differ; {len(labels)} rows came back")


def table(answers: Answers) -> str:
    """What a person reads."""
    lines: list[str] = []
    for name, found in answers.items():
        ours = found[LENGTHWISE].loop_s
        lines.append(f"{name:<34} {'start, s':>9} {'s/1,000 rows':>13} {'Lengthwise is':>14}")
        for who, cost in sorted(found.items(), key=lambda item: -item[1].loop_s):
            mark = "" if who in (LENGTHWISE, EXECUTING, BOUND) else f"{cost.loop_s / ours:.2f}x"
            goal = f"  (goal {GOALS[who]}x)" if who in GOALS else ""
            lines.append(f"  {who:<32} {cost.start_s:9.2f} {cost.loop_s:13.3f} {mark:>14}{goal}")
        share, whole = (found[BOUND].loop_s / found[who].loop_s for who in (EXECUTING, LENGTHWISE))
        lines.append(f"  {share:.0%} of the bound while executing (goal 85 %; wall clock), {whole:.0%} end to end\n")
    return "\n".join(lines)


def main() -> int:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    began, cores = time.monotonic(), os.sched_getaffinity(0)

    def say(line: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - began:4.0f} s] {line}\n")

    with tempfile.TemporaryDirectory(prefix="lengthwise-bench-") as folder:
        bench = Bench(Path(folder), max(cores))
        prepare(bench.folder, cores)
        say("model, nights, plans and artifacts are ready")
        answers = measure(bench, say)
        check_agreement(bench)
        add_bounds(bench, answers)
    sys.stdout.write(table(answers) + "\n")
    if args.json:
        plain = {name: {who: asdict(cost) for who, cost in found.items()} for name, found in answers.items()}
        args.json.write_text(json.dumps(plain, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
