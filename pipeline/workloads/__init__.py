"""Workloads: what runs a task on this machine, from prompts and targets to execution. One module each."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # what a workload is made of asks for workloads itself
    import pyarrow as pa

    from compile.batches import TokenRow
    from compile.model import ModelInfo
    from compile.parity import Tolerance
    from compile.shapes import Shape, ShapePlan
    from compile.targets import AnyTarget
    from pipeline.context import Context
    from pipeline.execution import EngineMaker
    from pipeline.job import Job
    from pipeline.run_plan import RunPlan
    from pipeline.tokenized import TokenBlock
    from pipeline.tokenizer import RowTokenizer
    from pipeline.toolchain import Toolchain

WORKLOADS = {"classify": "pipeline.workloads.classify", "generate": "pipeline.workloads.generate"}


class Workload(Protocol):
    """The half of a task that works; what its results become is pipeline.tasks. All heavy imports are deferred."""

    def read_model(self, context: Context, folder: Path) -> ModelInfo:
        """The model, fit for the task and the job. Raises ModelError, JobError."""

    def target(self, job: Job) -> AnyTarget[Any]:
        """Raises ValueError that lists the valid names."""

    def prompt_identity(self, context: Context) -> Any:
        """What of the job decides a row's tokens, beside input, max_length and truncation; JSON."""

    def tokenizer(self, context: Context, model_dir: Path) -> RowTokenizer:
        """Raises JobError."""

    def probe(
        self, context: Context, toolchain: Toolchain, model_dir: Path, rows: Callable[[], Sequence[TokenRow]]
    ) -> None:
        """Measure a few shapes before a first plan is made, where that is cheap."""

    def probes(self) -> bool:
        """Whether `probe` does anything."""

    def build(
        self,
        context: Context,
        plan: RunPlan,
        toolchain: Toolchain,
        model_dir: Path,
        shapes: ShapePlan,
        tolerance: Tolerance,
    ) -> None:
        """Make the missing artifacts of these shapes. Raises CompileError."""

    def engines(self, context: Context, plan: RunPlan) -> EngineMaker:
        """Asked once per process, before its first shard. Raises JobError."""

    def tally(
        self, plan: RunPlan, shape: Shape, block: TokenBlock, output: pa.Array, executions: int
    ) -> dict[str, Any]:
        """batches, slot_tokens and real_tokens of a shard's event, and what else the task counts."""


def load_workload(task: str) -> Workload:
    """The workload of that task. Raises ValueError that lists the valid names."""
    if task not in WORKLOADS:
        raise ValueError(f"unknown task {task!r}; choose one of: {', '.join(WORKLOADS)}")
    workload: Workload = importlib.import_module(WORKLOADS[task]).workload
    return workload
