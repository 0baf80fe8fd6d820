"""Peak memory and processor seconds of every step at growing numbers of rows: memory stays, time is linear.

    python -m bench.scale [--rows 10000 100000 1000000] [--stub-rows 10000 ... 10000000] [--json FILE] [--folder DIR]

Figures of a step are of its own processes, from the event log; `coordinator` is the peak of the `lengthwise run`
process, and the processor seconds of everything. Processor seconds, because other work on the machine does not count in
them. With the stub target inference costs nothing, and everything else is what it is in a real night; its texts are the
first 32 characters of tweets, for tokenising is what then takes the time.
"""  # fmt: skip

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.scale_inputs import DS, STUB, job_file, register_stub

SPLIT_ROWS = 2_500
"""Of the job, so that already in the smallest night a process has several: this sets what tokenise and publish take."""
REAL = "openvino"
COORDINATOR = "coordinator"
STEPS = ("tokenize", "plan", "compile", "infer", "publish", "commit")
PROCESSES = (COORDINATOR, "tokenize", "compile", "infer", "publish")
"""What has processes of its own; plan and commit run in the coordinator, and are seen before it reaches its peak."""
FLAT = 1.10


@dataclass(frozen=True, slots=True)
class StepCost:
    """All processes of one step together."""

    peak_mb: float
    """Of the largest of them."""
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Night:
    """One run of `lengthwise run`."""

    target: str
    rows: int
    splits: int
    shards: int
    wall_s: float
    steps: dict[str, StepCost]
    plan_bytes: int


def run_night(folder: Path, rows: int, target: str, split_rows: int = SPLIT_ROWS) -> Night:
    """Make the input, run it, read the figures. Raises subprocess.CalledProcessError."""
    root = Path(__file__).parent.parent
    own = {f"LENGTHWISE_{name}": str(folder / name.lower()) for name in ("CACHE", "LOCK_DIR")}
    environment = {**os.environ, **register_stub(folder / "plugin"), **own}
    made = [sys.executable, "-m", "bench.scale_inputs", str(folder), str(rows), target, str(split_rows)]
    subprocess.run(made, check=True, cwd=root, env=environment)
    command = [sys.executable, "-m", "pipeline", "run", str(job_file(folder, rows, target)), "--ds", DS, "--json"]
    started = time.monotonic()
    with (folder / "run.log").open("wb") as log:
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, cwd=root, env=environment)
        peak_mb, cpu_s = watch(child)
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}:\n{(folder / 'run.log').read_text()}")
    wall_s = time.monotonic() - started
    state = folder / f"out-{target}-{rows}" / "_lengthwise"
    steps = {COORDINATOR: StepCost(peak_mb, cpu_s), **step_costs(read_events(state))}
    (plan,) = state.glob(f"runs/ds={DS}/*/plan.json")
    planned = json.loads(plan.read_bytes())
    counts = (len(planned["row_offsets"]), len(planned["shards"]))
    return Night(target, rows, *counts, wall_s, steps, plan.stat().st_size)


def watch(child: subprocess.Popen[bytes]) -> tuple[float, float]:
    """Wait for a process: its own peak memory, and the processor seconds of it and all that it started."""
    peak_kb = 0
    while True:
        with contextlib.suppress(OSError, StopIteration):  # between its end and our noticing there is no such file
            lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
            peak_kb = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)  # its ru_maxrss is that of its largest child
        if pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return peak_kb * 1024 / 1e6, usage.ru_utime + usage.ru_stime
        time.sleep(0.1)


def read_events(state: Path) -> list[dict[str, Any]]:
    """Every event of a job's only night."""
    return [json.loads(line) for path in state.rglob("events/*.jsonl") for line in path.read_text().splitlines()]


def step_costs(events: Sequence[dict[str, Any]]) -> dict[str, StepCost]:
    """Per step that has events of its own."""
    found = {}
    for step in STEPS:
        own = [event for event in events if event["event"] == step]
        if own:
            peak = max(event["peak_memory_bytes"] for event in own) / 1e6
            found[step] = StepCost(peak, sum(event["cpu_s"] for event in own))
    return found


def growth(nights: Sequence[Night], step: str) -> float:
    """Largest peak over the smallest, 1.0 is flat."""
    peaks = [night.steps[step].peak_mb for night in nights if step in night.steps]
    return max(peaks) / min(peaks) if peaks else 1.0


def table(nights: Sequence[Night]) -> str:
    """Markdown: memory by step and target, then processor seconds per 100,000 rows."""
    lines = []
    columns = (COORDINATOR, *STEPS)
    header = "| target | rows | splits | shards | plan, KB | " + " | ".join(columns) + " |"
    rule = "| --- " * 5 + "| ---: " * len(columns) + "|"
    for title, cell in (("peak MB of a process", _peak), ("processor seconds per 100,000 rows", _seconds)):
        lines += [f"{title}:", "", header, rule]
        for night in nights:
            given = (night.target, f"{night.rows:,}", f"{night.splits:,}", f"{night.shards:,}", night.plan_bytes >> 10)
            lines.append("| " + " | ".join([*map(str, given), *(cell(night, step) for step in columns)]) + " |")
        lines.append("")
    for target in dict.fromkeys(night.target for night in nights):
        own = [night for night in nights if night.target == target]
        found = ", ".join(f"{step} {growth(own, step):.2f}" for step in columns if any(step in n.steps for n in own))
        lines.append(f"{target}: largest peak over smallest: {found}")
    return "\n".join(lines)


def _peak(night: Night, step: str) -> str:
    return f"{night.steps[step].peak_mb:.0f}" if step in night.steps else ""


def _seconds(night: Night, step: str) -> str:
    return f"{night.steps[step].cpu_s * 1e5 / night.rows:.2f}" if step in night.steps else ""


def main() -> int:
    """1 when a process took more than a tenth more in one night than in another."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--stub-rows", type=int, nargs="*", default=[10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--folder", type=Path, help="where to work (15 GB for 10,000,000 rows); default: temporary")
    arguments = parser.parse_args()
    nights: list[Night] = []
    with tempfile.TemporaryDirectory(prefix="lengthwise-scale-", dir=arguments.folder) as folder:
        for target, sizes in ((REAL, arguments.rows), (STUB, arguments.stub_rows)):
            for rows in sizes:
                nights.append(run_night(Path(folder), rows, target))
                sys.stderr.write(f"{target}: {rows:,} rows took {nights[-1].wall_s:.0f} s\n")
                if arguments.json:
                    arguments.json.write_text(json.dumps([asdict(night) for night in nights], indent=1))
    sys.stdout.write(table(nights) + "\n")
    grown = [target for target in (REAL, STUB) for step in PROCESSES
             if growth([night for night in nights if night.target == target], step) > FLAT]  # fmt: skip
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
