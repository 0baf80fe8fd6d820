"""How sequences are classified: an encoder executes one padded batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from compile.batches import TokenRow, batch_flat
from compile.build import build_missing
from compile.model import ModelInfo, read_model
from compile.parity import Tolerance
from compile.probe import probe_costs
from compile.shapes import Shape, ShapePlan
from compile.targets import Executable, Target, load_target
from pipeline.context import Context
from pipeline.execution import EngineMaker
from pipeline.job import Job
from pipeline.run_plan import RunPlan
from pipeline.sample_rows import labelled_rows, sample_rows
from pipeline.tasks.classify import logits_array, logits_type
from pipeline.tokenized import TokenBlock
from pipeline.tokenizer import Tokenizer
from pipeline.toolchain import Toolchain


class Classify:
    """See pipeline.workloads.Workload."""

    def read_model(self, context: Context, folder: Path) -> ModelInfo:
        del context
        return read_model(folder)

    def target(self, job: Job) -> Target:
        return load_target(job.target, job.neuron_settings)

    def prompt_identity(self, context: Context) -> Any:
        del context

    def tokenizer(self, context: Context, model_dir: Path) -> Tokenizer:
        return Tokenizer(model_dir, context.job.max_length, context.job.truncation)

    def probes(self) -> bool:
        return True

    def probe(
        self, context: Context, toolchain: Toolchain, model_dir: Path, rows: Callable[[], Sequence[TokenRow]]
    ) -> None:
        found = without_pads(rows(), toolchain.model)
        if found:
            probe_costs(
                toolchain.store,
                toolchain.target,
                toolchain.model,
                model_dir,
                toolchain.precision,
                found,
                context.job.max_length,
                lambda line: context.say(f"plan: measured {line}"),
            )

    def build(
        self,
        context: Context,
        plan: RunPlan,
        toolchain: Toolchain,
        model_dir: Path,
        shapes: ShapePlan,
        tolerance: Tolerance,
    ) -> None:
        build_missing(
            toolchain.store,
            toolchain.target,
            toolchain.model,
            model_dir,
            shapes,
            toolchain.precision,
            without_pads(sample_rows(context, plan), toolchain.model),
            tolerance,
            lambda line: context.say(f"compile: {line}"),
            labelled=labelled_rows(context, plan),
        )

    def engines(self, context: Context, plan: RunPlan) -> EngineMaker:
        del context
        labels = max(1, len(plan.model.labels))
        return lambda loaded, shape: EncoderEngine(loaded, shape.batch, plan.model.pad_token_id, logits_type(labels))

    def tally(
        self, plan: RunPlan, shape: Shape, block: TokenBlock, output: pa.Array, executions: int
    ) -> dict[str, Any]:
        del plan, output
        slot_tokens = executions * shape.slot_tokens
        return {"batches": executions, "slot_tokens": slot_tokens, "real_tokens": int(block.lengths.sum())}


@dataclass(slots=True)
class EncoderEngine:
    """See pipeline.execution.Engine."""

    executable: Executable
    group: int
    pad_token_id: int
    kind: pa.DataType

    def execute(self, rows: TokenBlock) -> pa.Array:
        segment_b = rows.rows["segment_b"].astype(np.int64)
        batch = batch_flat(rows.flat, rows.lengths, segment_b, self.executable.shape, self.pad_token_id)
        return logits_array(self.executable.run(batch)[: len(rows)])

    def idle(self) -> None:
        empty = np.empty(0, np.int64)
        self.executable.run(batch_flat(empty, empty, empty, self.executable.shape, self.pad_token_id))

    def counts(self) -> dict[str, Any]:
        return {}


def without_pads(rows: Sequence[TokenRow], model: ModelInfo) -> list[TokenRow]:
    """A text may spell out the pad token; such a row is predicted like any other, but says nothing about padding."""
    return [row for row in rows if not (row.token_ids == model.pad_token_id).any()]


workload = Classify()
