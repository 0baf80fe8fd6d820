"""Step 5, infer: one worker on its cores works through shards; each result is created once under the fingerprint."""

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
from pipeline.errors import WorkerError
from pipeline.events import EventLog, now
from pipeline.execution import Engine, EngineMaker, Executor, Health
from pipeline.isolation import Isolation, piece_object, suspects
from pipeline.layout import shard_object
from pipeline.leases import Lease
from pipeline.locks import lock_dir, try_lock
from pipeline.pieces import run_piece
from pipeline.published import is_published
from pipeline.renewal import Anew
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
    """One model copy on its cores: at most one shape is loaded at a time."""

    context: Context
    plan: RunPlan
    toolchain: Toolchain
    log: EventLog
    lease: Lease | None = None
    """None of a piece, which has that of the worker that started it."""
    may_start_anew: bool = False
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
    used: bool = False
    """A model was loaded here: on NeuronCores, no other process can have them before this one ends or starts anew."""
    anew: Anew | None = None
    """How it is to go on, when not in this process as it is."""

    def run(self, index: int, of: int) -> None:
        """Do the shards of worker `index`, then what other workers have left; returns when its own are all done.

        Or earlier, with `anew` set: between two shards, or before one that only a process without a model can do.
        """
        for shard, wait in self._order(index, of):
            self._attempt(shard, wait)
            if self.anew:
                return

    def _order(self, index: int, of: int) -> Iterator[tuple[Shard, bool]]:
        """Shards to attempt, and whether to wait for whoever is at one."""
        lists = assign(self.plan.shards, self.plan.shape_plan, of)
        own = lists[index]
        others = [shard for other in (*lists[index + 1 :], *lists[:index]) for shard in reversed(other)]
        present = self.context.objects.list(f"{self.plan.uri}/shards/")
        self.suspects = suspects(self.plan.uri, present)
        done = {shard.index for shard in self.plan.shards if shard_object(self.plan.uri, shard.index) in present}
        # A suspect of another worker may be in the hands of another host, which no lock here tells.
        for number in (*own, *(other for other in others if other not in self.suspects)):
            if number not in done:
                yield self.plan.shards[number], False
        for number in own:  # another worker of this host took one and may have died with it
            yield self.plan.shards[number], True

    @property
    def core(self) -> int:
        """Which one its events are about; -1 of a piece."""
        return self.lease.core if self.lease else -1

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
            apart = self.careful or trace.exists() or shard.index in self.suspects
            if self._gives_way() or (apart and not self._can_lend_its_cores(shard)):
                return
            if apart:
                self._isolate(shard, uri)
                trace.unlink(missing_ok=True)
            else:
                with finished_first(), _traced(trace):
                    self._infer(shard, uri)

    def _gives_way(self) -> bool:
        """Whether a job with fewer cores is to have these, now that a shard was done on them and more are left."""
        if self.lease is None or not self.may_start_anew or not self.shards:
            return False
        job = self.lease.wanted_by()
        if job is None:
            return False
        self.context.say(f"infer: core {self.core} goes to job {job}, which has fewer; this worker waits for another")
        self.anew = "in the queue"
        return True

    def _can_lend_its_cores(self, shard: Shard) -> bool:
        """Whether a child of this process could use them; if not, it starts anew before it isolates the shard."""
        if not (self.used and self.lease and self.lease.bound):
            return True
        if not self.may_start_anew:
            raise WorkerError(
                f"shard {shard.index} has to be executed in a process of its own, which cannot have NeuronCores that "
                "this one has used; run the infer step again"
            )
        self.anew = "with its cores"
        return False

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
        descriptors = self.lease.descriptors if self.lease else ()
        isolation = Isolation(
            self.context.objects, self.plan.uri, shard.index, kind, self.health,
            lambda start, stop: run_piece(self.plan.uri, shard.index, start, stop, self.context.say, descriptors),
            self.context.say,
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
        self.used = True
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


def infer_shards(
    context: Context, plan: RunPlan, index: int, of: int, lease: Lease, log: EventLog, *, may_start_anew: bool = False
) -> tuple[dict[str, int], Anew | None]:
    """Work as worker `index` of `of`; how to go on where it is not done. Finished shards stay.

    Raises ArtifactError, StorageError, DeviceError, WorkerError.
    """
    before = compilations()
    worker = Worker(context, plan, job_toolchain(context, plan.model), log, lease, may_start_anew)
    worker.run(index, of)
    result = {"shards": worker.shards, "rows": worker.rows, "compilations": _compiled(plan, before)}
    return result, worker.anew


def infer_piece(context: Context, plan: RunPlan, number: int, start: int, stop: int, log: EventLog) -> dict[str, int]:
    """Store the results of rows [start, stop) of a shard apart; without rows, test the device with padding alone."""
    before = compilations()
    worker = Worker(context, plan, job_toolchain(context, plan.model), log)
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
