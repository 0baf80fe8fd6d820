"""Kill -9 at random moments of `lengthwise run`: which process, when, and what must hold of the runs afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from chaos_job import PROGRESS, Target

from jobs import DS
from pipeline.events import read_events
from pipeline.objects import Objects

LIMIT_S = 600
"""After which a run is said to hang: eight workers that import PyTorch take minutes on a busy machine."""
WEIGHTS = {"time": 5, "tokens": 1, "shards": 8, "parts": 2, "summaries": 2, "copied": 1, "manifest": 1}
"""Kind of moment -> how often; one of them is time alone, the others are progress seen in the store."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When and whom to kill: `delay_s` after there are `more` of `what` than when the run was started."""

    what: str
    more: int
    delay_s: float
    victim: str
    """coordinator, child, or group: all processes at once."""


@dataclass(frozen=True, slots=True)
class Kill:
    """What was hit, and what the store held right after."""

    moment: Moment
    victim: str
    at: float
    """Epoch seconds."""
    shards: frozenset[int]
    """Shards whose result existed."""
    committed: bool
    lost: frozenset[int] = frozenset()
    """Shards that a killed worker was executing and that have no result: the work that is repeated."""

    @property
    def before_commit(self) -> bool:
        """Between the write of a result and the commit."""
        return bool(self.shards) and not self.committed


@dataclass(slots=True)
class Trial:
    """One output, attacked until it was killed often enough, then run to its end."""

    target: Target
    kills: list[Kill] = field(default_factory=list)

    @property
    def repeats_allowed(self) -> int:
        """One shard per core and kill."""
        return self.target.workers * len(self.kills)


def draw(rng: random.Random, full_s: float, kinds: dict[str, int]) -> Moment:
    """A random moment; `full_s` is what a whole run takes."""
    what = rng.choices([*kinds], [*kinds.values()])[0]
    delay = rng.uniform(0, full_s) if what == "time" else rng.choice([0.0, rng.uniform(0, 0.1)])
    victim = rng.choice(["coordinator", "coordinator", "child", "child", "group"])
    return Moment(what, rng.randint(1, 5 if what == "shards" else 2), delay, victim)


def attack(trial: Trial, rng: random.Random, kills: int, full_s: float, kinds: dict[str, int] | None = None) -> None:
    """Kill runs of the target until `kills` were made or one of them finished."""
    log = trial.target.home.folder / "log"
    while len(trial.kills) < kills:
        with running(trial.target, log) as process:
            code = _attack_one(trial, process, rng, kills, full_s, kinds or WEIGHTS)
        assert "Traceback" not in log.read_text(), log.read_text()
        if code == 0:
            return
        assert code in (-signal.SIGKILL, 6), f"exit code {code}\n{log.read_text()}"


def _attack_one(
    trial: Trial, process: subprocess.Popen[bytes], rng: random.Random, kills: int, full_s: float, kinds: dict[str, int]
) -> int:
    """Kill within one run until it has ended; its exit code."""
    family: set[psutil.Process] = {psutil.Process(process.pid)}
    deadline = time.monotonic() + LIMIT_S
    while len(trial.kills) < kills and process.poll() is None:
        moment = draw(rng, full_s, kinds)
        if _await(trial.target, process, moment, deadline):
            with contextlib.suppress(psutil.NoSuchProcess):
                family |= set(psutil.Process(process.pid).children(recursive=True))
            trial.kills.append(_strike(trial.target, process, moment, rng))
            if trial.kills[-1].victim != "child":
                break
    code = process.wait(max(1.0, deadline - time.monotonic()))
    _all_gone(family)
    _no_core_is_held(trial.target)
    return code


@contextlib.contextmanager
def running(target: Target, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`lengthwise run` with its output appended to `log`; never left behind."""
    command = [sys.executable, "-m", "pipeline", "run", str(target.home.file), "--ds", DS]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=dict(target.home.environment), start_new_session=True
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _await(target: Target, process: subprocess.Popen[bytes], moment: Moment, deadline: float) -> bool:
    """Whether the moment came before the run ended."""
    if moment.what != "time":
        wanted = target.count(moment.what) + moment.more
        while target.count(moment.what) < wanted:
            if process.poll() is not None:
                return False
            assert time.monotonic() < deadline, f"the run hangs, waiting for {moment}"
            time.sleep(0.001)
    ready_at = time.monotonic() + moment.delay_s
    while time.monotonic() < ready_at and process.poll() is None:
        time.sleep(0.001)
    return process.poll() is None


def _strike(target: Target, process: subprocess.Popen[bytes], moment: Moment, rng: random.Random) -> Kill:
    """Kill; a child where there is none means the coordinator, with whom its children die."""
    children = psutil.Process(process.pid).children(recursive=True)
    victim = "coordinator" if moment.victim == "child" and not children else moment.victim
    hit = [rng.choice(sorted(children, key=lambda child: child.pid))] if victim == "child" else children
    executing = _shards_in_work(target, {child.pid for child in hit})
    if victim == "child":
        with contextlib.suppress(psutil.NoSuchProcess):
            hit[0].kill()
    elif victim == "group":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    shards, committed = _results(target)
    return Kill(moment, victim, time.time(), shards, committed, frozenset(executing - shards))


def _shards_in_work(target: Target, workers: set[int]) -> set[int]:
    """Shards whose locks these processes hold, as the kernel says."""
    inodes = {
        int(fields[5].rsplit(":", 1)[1])
        for fields in map(str.split, Path("/proc/locks").read_text().splitlines())
        if fields[1] == "FLOCK" and int(fields[4]) in workers
    }
    locks = (target.home.folder / "locks" / "shards").rglob("*.lock")
    return {int(path.stem) for path in locks if path.stat().st_ino in inodes}


def _results(target: Target) -> tuple[frozenset[int], bool]:
    """Shards that have a result, and whether the partition is committed."""
    names = target.names()
    shards = frozenset(int(Path(name).stem.removeprefix("shard-")) for name in names if PROGRESS["shards"](name))
    return shards, any(map(PROGRESS["manifest"], names))


def _all_gone(family: set[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(family, timeout=30)
    left = [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert not left, f"orphans: {left}"


def _no_core_is_held(target: Target) -> None:
    for path in (target.home.folder / "locks").glob("*cores/*.lock"):
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def finish(trial: Trial, reference: dict[str, bytes]) -> None:
    """Run to the end and check every promise."""
    target = trial.target
    present, _ = _results(target)
    at = time.time()
    done = target.home.command("run", str(target.home.file), "--ds", DS, "--json", timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["rows"] == report["predicted"] + report["rejected"]
    assert report["compilations_in_infer"] == 0
    assert target.tables() == reference
    run = f"{target.out}/_lengthwise/runs/ds={DS}/{report['fingerprint']}"
    left = {name for name in target.names() if name.startswith(run.removeprefix(f"{target.out}/"))}
    assert {name.split("/")[4] for name in left} <= {"plan.json", "events"}, f"leftovers: {left}"
    shards = len(json.loads(Objects().get(f"{run}/plan.json"))["shards"])
    events = [event for event in read_events(Objects(), f"{run}/events/") if event["event"] == "shard"]
    for since, had in (*((kill.at, kill.shards) for kill in trial.kills), (at, present)):
        again = [event["shard"] for event in events if event["started"] > since and event["shard"] in had]
        assert not again, f"shards {again} had their result and were done again"
    assert len(events) <= shards + trial.repeats_allowed
    assert all(len(kill.lost) <= target.workers for kill in trial.kills)
