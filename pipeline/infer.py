"""Step 5, infer: one worker on one core works through shards; each result is created once under the fingerprint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compile.compilations import compilations
from compile.errors import ArtifactError, DeviceError
from compile.shapes import Shape
from pipeline.context import Context
from pipeline.cores import lock_dir, try_lock
from pipeline.events import EventLog, now
from pipeline.execution import Engine, EngineMaker, Executor, Health
from pipeline.isolation import Isolation, piece_object, suspects
from pipeline.layout import shard_object
from pipeline.pieces import run_piece
from pipeline.published import is_published
from pipeline.run_plan import RunPlan
from pipeline.shard_result import ShardResult
from pipeline.shards import Shard, assign
from pipeline.stopping import finished_first
from pipeline.tasks import load_task
from pipeline.tokenized import SplitCounts, TokenBlock, load_counts, read_block
from pipeline.toolchain import Toolchain, job_toolchain
from pipeline.workloads import load_workload


@dataclass(slots=True)
class Worker:
    """One model copy on one core: at most one shape is loaded at a time."""

    context: Context
    plan: RunPlan
    toolchain: Toolchain
    log: EventLog
    core: int
    health: Health = field(default_factory=Health)
    counts: dict[int, SplitCounts] = field(default_factory=dict)
    loaded: tuple[Shape, Engine] | None = None
    engines: EngineMaker | None = None
    shards: int = 0
    rows: int = 0
    suspects: set[int] = field(default_factory=set)
    """Shards that somebody was isolating when this worker began."""
    careful: bool = False
    """A row was found that kills its process: no shard of this run is executed in this one any more."""

    def run(self, index: int, of: int) -> None:
        """Do the shards of worker `index`, then what other workers have left; returns when its own are all done."""
        lists = assign(self.plan.shards, self.plan.shape_plan, of)
        own = lists[index]
        others = [shard for other in (*lists[index + 1 :], *lists[:index]) for shard in reversed(other)]
        present = self.context.objects.list(f"{self.plan.uri}/shards/")
        self.suspects = suspects(self.plan.uri, present)
        done = {shard.index for shard in self.plan.shards if shard_object(self.plan.uri, shard.index) in present}
        # A suspect of another worker may be in the hands of another host, which no lock here tells.
        for number in (*own, *(other for other in others if other not in self.suspects)):
            if number not in done:
                self._attempt(self.plan.shards[number], wait=False)
        for number in own:  # another worker of this host took one and may have died with it
            self._attempt(self.plan.shards[number], wait=True)

    def _attempt(self, shard: Shard, wait: bool) -> None:
        uri = shard_object(self.plan.uri, shard.index)
        lock = lock_dir() / "shards" / self.plan.fingerprint / f"{shard.index}.lock"
        trace = lock.with_suffix(".begun")
        # Another host may have published this run meanwhile and swept its shards: then none is missing.
        if self.context.objects.exists(uri) or is_published(self.context, self.plan):
            return
        with try_lock(lock, wait) as held:
            if not held or self.context.objects.exists(uri):
                return
            if self.careful or trace.exists() or shard.index in self.suspects:
                self._isolate(shard, uri)
                trace.unlink(missing_ok=True)
            else:
                with finished_first(), _traced(trace):
                    self._infer(shard, uri)

    def _infer(self, shard: Shard, uri: str) -> None:
        started = now()
        executor = self.executor(shard, self.say_fault(shard))
        loaded = now()
        block = self.read(shard)
        read, cpu = now(), time.process_time()
        result = executor.run(block)
        executed, cpu = now(), time.process_time() - cpu
        self._store(
            shard, uri, result, block, executor.executions, started, executor.engine.counts(),
            load_s=loaded - started, read_s=read - loaded, execute_s=executed - read, cpu_s=cpu,
        )  # fmt: skip

    def _isolate(self, shard: Shard, uri: str) -> None:
        """Execute a shard that somebody died on in processes of their own; this one lets its model go first."""
        self.loaded = None
        started = now()
        block = self.read(shard)
        kind = load_task(self.plan.job.task).output_type(self.plan.model.labels)
        isolation = Isolation(
            self.context.objects, self.plan.uri, shard.index, kind, self.health,
            lambda start, stop: run_piece(self.plan.uri, shard.index, start, stop, self.context.say), self.context.say,
        )  # fmt: skip
        read = now()
        result = isolation.run(shard.rows)
        self.careful = self.careful or isolation.deadly_rows > 0
        self._store(
            shard, uri, result, block, isolation.executions, started, {},
            load_s=0.0, read_s=read - started, execute_s=now() - read, cpu_s=0.0,
        )  # fmt: skip

    def _store(
        self,
        shard: Shard,
        uri: str,
        result: ShardResult,
        block: TokenBlock,
        executions: int,
        started: float,
        counted: dict[str, Any],
        **spent: float,
    ) -> None:
        stored = now()
        created = self.context.objects.put_new(uri, result.encode())
        ended = now()
        self.shards += 1
        self.rows += shard.rows
        shape = self.plan.shape_plan.shapes[shard.shape]
        tally = load_workload(self.plan.job.task).tally(self.plan, shape, block, result.output, executions)
        self.log.write(
            "shard", started, ended, core=self.core, shard=shard.index, shape=str(shape), rows=shard.rows,
            **(tally | counted), faults=result.fault_count, write_s=ended - stored, created=created, **spent,
        )  # fmt: skip
        self.context.advance(shard.rows)
        self.context.say(
            f"infer: core {self.core}: shard {shard.index} ({shape}): {shard.rows:,} rows in {ended - started:.1f} s"
        )

    def say_fault(self, shard: Shard) -> Any:
        def say(said: str) -> None:
            self.log.write("fault", now(), now(), shard=shard.index, said=said)
            self.context.say(f"infer: shard {shard.index}: a row is rejected, the device failed on it alone: {said}")

        return say

    def executor(self, shard: Shard, on_fault: Any) -> Executor:
        """The shard's executable, loaded where another one was before."""
        return Executor(self._load(shard), self.health, on_fault)

    def _load(self, shard: Shard) -> Engine:
        shape = self.plan.shape_plan.shapes[shard.shape]
        if self.engines is None:
            self.engines = load_workload(self.plan.job.task).engines(self.context, self.plan)
        if self.loaded is None or self.loaded[0] != shape:
            self.loaded = None  # frees the other shape first: one copy in memory at a time
            spec = self.toolchain.spec(shape)
            if spec.key != self.plan.artifacts[shard.shape]:
                raise ArtifactError(
                    f"shape {shape}: the run was planned for artifact {self.plan.artifacts[shard.shape]}, this host "
                    f"would load {spec.key}: its versions or machine kind differ ({spec.machine}, "
                    f"{dict(spec.versions)}); run all steps on one kind of host"
                )
            self.loaded = shape, self.engines(self.toolchain.store.load(spec, self.toolchain.target), shape)
        return self.loaded[1]

    def read(self, shard: Shard) -> TokenBlock:
        """All rows of a shard."""
        blocks = []
        known, self.counts = self.counts, {}  # shards follow the splits: what the last one needed is all worth keeping
        for part in shard.ranges:
            counts = known.get(part.split) or load_counts(self.context.objects, self.plan.tokens_uri, part.split)
            self.counts[part.split] = counts
            blocks.append(read_block(self.context.objects, self.plan.tokens_uri, counts, part.start, part.stop))
        return TokenBlock.joined(blocks)


@contextmanager
def _traced(trace: Path) -> Iterator[None]:
    """A file that is there during the body, and afterwards if the process died in it or lost its device."""
    trace.touch()
    try:
        yield
    except DeviceError:
        raise
    except BaseException:
        trace.unlink(missing_ok=True)
        raise
    trace.unlink(missing_ok=True)


def infer_shards(context: Context, plan: RunPlan, index: int, of: int, core: int, log: EventLog) -> dict[str, int]:
    """Work as worker `index` of `of`. Raises ArtifactError, StorageError, DeviceError; finished shards stay."""
    before = compilations()
    worker = Worker(context, plan, job_toolchain(context, plan.model), log, core)
    worker.run(index, of)
    return {"shards": worker.shards, "rows": worker.rows, "compilations": _compiled(plan, before)}


def infer_piece(context: Context, plan: RunPlan, number: int, start: int, stop: int, log: EventLog) -> dict[str, int]:
    """Store the results of rows [start, stop) of a shard apart; without rows, test the device with padding alone."""
    before = compilations()
    worker = Worker(context, plan, job_toolchain(context, plan.model), log, core=-1)
    shard = plan.shards[number]
    executor = worker.executor(shard, worker.say_fault(shard))
    if start == stop:
        executor.probe()
    else:
        result = executor.run(worker.read(shard).part(start, stop))
        context.objects.put_new(piece_object(plan.uri, number, start, stop), result.encode())
    _compiled(plan, before)
    return {"executions": executor.executions}


def _compiled(plan: RunPlan, before: int) -> int:
    compiled = compilations() - before
    if compiled:
        raise ArtifactError(f"the infer step compiled {compiled} graphs; this is a defect of target {plan.job.target}")
    return compiled
