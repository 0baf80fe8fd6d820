"""Step 5, infer: one worker on one core works through shards; each result is created once under the fingerprint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from compile.batches import batch_flat
from compile.compilations import compilations
from compile.errors import ArtifactError
from compile.targets import Executable
from pipeline.context import Context
from pipeline.cores import lock_dir, try_lock
from pipeline.events import EventLog
from pipeline.layout import shard_object
from pipeline.published import is_published
from pipeline.run_plan import RunPlan
from pipeline.shards import Shard, assign
from pipeline.tokenized import SplitCounts, TokenBlock, load_counts, read_block
from pipeline.toolchain import Toolchain, job_toolchain


@dataclass(slots=True)
class Worker:
    """One model copy on one core: at most one shape is loaded at a time."""

    context: Context
    plan: RunPlan
    toolchain: Toolchain
    log: EventLog
    core: int
    counts: dict[int, SplitCounts] = field(default_factory=dict)
    loaded: Executable | None = None
    shards: int = 0
    rows: int = 0

    def run(self, index: int, of: int) -> None:
        """Do the shards of worker `index`, then what other workers have left; returns when its own are all done."""
        lists = assign(self.plan.shards, self.plan.shape_plan, of)
        own = lists[index]
        others = [shard for other in (*lists[index + 1 :], *lists[:index]) for shard in reversed(other)]
        done = self._done()
        for number in (*own, *others):
            if number not in done:
                self._attempt(self.plan.shards[number], wait=False)
        for number in own:  # another worker of this host took one and may have died with it
            self._attempt(self.plan.shards[number], wait=True)

    def _done(self) -> set[int]:
        present = set(self.context.objects.list(f"{self.plan.uri}/shards/"))
        return {shard.index for shard in self.plan.shards if shard_object(self.plan.uri, shard.index) in present}

    def _attempt(self, shard: Shard, wait: bool) -> None:
        uri = shard_object(self.plan.uri, shard.index)
        lock = lock_dir() / "shards" / self.plan.fingerprint / f"{shard.index}.lock"
        # Another host may have published this run meanwhile and swept its shards: then none is missing.
        if not self.context.objects.exists(uri) and not is_published(self.context, self.plan):
            with try_lock(lock, wait) as held:
                if held and not self.context.objects.exists(uri):
                    self._infer(shard, uri)

    def _infer(self, shard: Shard, uri: str) -> None:
        started = time.time()
        executable = self._load(shard)
        loaded = time.time()
        block = self._read(shard)
        read, cpu = time.time(), time.process_time()
        logits = np.concatenate(list(run_batches(executable, block, self.plan.model.pad_token_id)))
        executed, cpu = time.time(), time.process_time() - cpu
        created = self.context.objects.put_new(uri, encode_logits(logits))
        ended = time.time()
        self.shards += 1
        self.rows += shard.rows
        shape = executable.shape
        batches = -(-shard.rows // shape.batch)
        self.log.write(
            "shard", started, ended, core=self.core, shard=shard.index, shape=str(shape), rows=shard.rows,
            batches=batches, slot_tokens=batches * shape.slot_tokens, real_tokens=int(block.lengths.sum()),
            load_s=loaded - started, read_s=read - loaded, execute_s=executed - read, cpu_s=cpu,
            write_s=ended - executed, created=created,
        )  # fmt: skip
        self.context.advance(shard.rows)
        self.context.say(
            f"infer: core {self.core}: shard {shard.index} ({shape}): {shard.rows:,} rows in {ended - started:.1f} s"
        )

    def _load(self, shard: Shard) -> Executable:
        shape = self.plan.shape_plan.shapes[shard.shape]
        if self.loaded is None or self.loaded.shape != shape:
            self.loaded = None  # frees the other shape first: one copy in memory at a time
            spec = self.toolchain.spec(shape)
            if spec.key != self.plan.artifacts[shard.shape]:
                raise ArtifactError(
                    f"shape {shape}: the run was planned for artifact {self.plan.artifacts[shard.shape]}, this host "
                    f"would load {spec.key}: its versions or machine kind differ ({spec.machine}, "
                    f"{dict(spec.versions)}); run all steps on one kind of host"
                )
            self.loaded = self.toolchain.store.load(spec, self.toolchain.target)
        return self.loaded

    def _read(self, shard: Shard) -> TokenBlock:
        blocks = []
        known, self.counts = self.counts, {}  # shards follow the splits: what the last one needed is all worth keeping
        for part in shard.ranges:
            counts = known.get(part.split) or load_counts(self.context.objects, self.plan.tokens_uri, part.split)
            self.counts[part.split] = counts
            blocks.append(read_block(self.context.objects, self.plan.tokens_uri, counts, part.start, part.stop))
        return TokenBlock(
            np.concatenate([block.flat for block in blocks]),
            np.concatenate([block.lengths for block in blocks]),
            np.concatenate([block.rows for block in blocks]),
        )


def infer_shards(context: Context, plan: RunPlan, index: int, of: int, core: int, log: EventLog) -> dict[str, int]:
    """Work as worker `index` of `of`. Raises ArtifactError, StorageError, DeviceError; finished shards stay."""
    before = compilations()
    worker = Worker(context, plan, job_toolchain(context, plan.model), log, core)
    worker.run(index, of)
    compiled = compilations() - before
    if compiled:
        raise ArtifactError(f"the infer step compiled {compiled} graphs; this is a defect of target {plan.job.target}")
    return {"shards": worker.shards, "rows": worker.rows, "compilations": compiled}


def run_batches(executable: Executable, block: TokenBlock, pad_token_id: int) -> Iterator[NDArray[np.float32]]:
    """Logits per batch, float32 (rows in the batch, labels), padding rows dropped."""
    shape = executable.shape
    ends = np.concatenate([[0], np.cumsum(block.lengths)])
    segment_b = block.rows["segment_b"].astype(np.int64)
    for start in range(0, len(block.lengths), shape.batch):
        stop = min(start + shape.batch, len(block.lengths))
        batch = batch_flat(
            block.flat[ends[start] : ends[stop]], block.lengths[start:stop], segment_b[start:stop], shape, pad_token_id
        )
        yield executable.run(batch)[: stop - start]


def encode_logits(logits: NDArray[np.float32]) -> bytes:
    """An Arrow IPC file with one column `logits`, fixed_size_list<float32>, in the shard's row order."""
    values = pa.FixedSizeListArray.from_arrays(pa.array(logits.ravel(), pa.float32()), logits.shape[1])
    table = pa.table({"logits": values})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def decode_logits(data: bytes) -> NDArray[np.float32]:
    """float32 of shape (rows, labels)."""
    column = pa.ipc.open_file(pa.BufferReader(data)).read_all()["logits"].combine_chunks()
    return np.asarray(column.flatten(), np.float32).reshape(len(column), column.type.list_size)
