"""What compiles and executes a job's model here: target, precision, artifact store, and the costs measured so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compile.artifacts import ArtifactSpec, ArtifactStore, artifact_spec
from compile.costs import CostModel, job_costs
from compile.errors import ArtifactError
from compile.model import ModelInfo
from compile.shapes import Shape, ShapePlan
from compile.targets import AnyTarget
from pipeline.context import Context
from pipeline.errors import JobError
from pipeline.workloads import load_workload


@dataclass(frozen=True, slots=True)
class Toolchain:
    """One model on one target at one precision, with the store of its artifacts."""

    target: AnyTarget[Any]
    precision: str
    model: ModelInfo
    store: ArtifactStore

    def spec(self, shape: Shape) -> ArtifactSpec:
        """The artifact that this host would build and load."""
        return artifact_spec(self.target, self.model, shape, self.precision)

    def costs(self) -> CostModel:
        """Seconds per batch, measured where artifacts were built, else fitted."""
        return job_costs(self.store, self.target, self.model, self.precision)

    def unfit(self, plan: ShapePlan) -> dict[Shape, str]:
        """Shapes of a plan whose artifact cannot be loaded on this host, with the reason."""
        reasons = {}
        for shape in plan.shapes:
            try:
                self.store.check(self.spec(shape))
            except ArtifactError as error:
                reasons[shape] = str(error)
        return reasons


def job_toolchain(context: Context, model: ModelInfo) -> Toolchain:
    """The job's target and the precision that `auto` means here. Raises JobError when this host lacks them."""
    target = load_workload(context.job.task).target(context.job)
    reason = target.unavailable()
    if reason:
        raise JobError(f"target: {target.name} cannot run here: {reason}")
    precision = target.default_precision() if context.job.precision == "auto" else context.job.precision
    unsupported = target.supports(precision)
    if unsupported:
        raise JobError(f"precision: {unsupported}")
    return Toolchain(target, precision, model, artifact_store(context))


def artifact_store(context: Context) -> ArtifactStore:
    return ArtifactStore(context.objects, context.artifacts_uri, context.cache_dir / "artifacts")
