"""A compiled export that was made elsewhere becomes an artifact: what the job asks for, and faithful on its rows."""

from __future__ import annotations

from pathlib import Path

from compile.artifacts import Manifest
from compile.build import adopt_artifact
from compile.errors import ArtifactError
from compile.shapes import Shape
from compile.targets import AdoptsExports
from pipeline.building import tolerance_of
from pipeline.context import Context
from pipeline.errors import JobError
from pipeline.models import job_model
from pipeline.run_plan import RunPlan
from pipeline.sample_rows import labelled_rows, sample_rows
from pipeline.toolchain import job_toolchain
from pipeline.workloads.classify import without_pads


def adopt(context: Context, plan: RunPlan, directory: Path) -> Manifest:
    """The artifact of that export, proven on rows of a planned run; pending on a host without the device.

    Raises JobError for a job whose target has no such exports, ArtifactError for an export of another kind,
    CompileError for one that is not faithful to the job's model.
    """
    job = context.job
    model_dir, model = job_model(context)
    toolchain = job_toolchain(context, model)
    target = toolchain.target
    if job.task != "classify" or not isinstance(target, AdoptsExports):
        raise JobError(f"target: {job.target} with task {job.task} adopts no exports; task classify with neuron does")
    shape: Shape = target.exported_shape(directory)
    if shape.length > job.max_length and shape not in plan.shape_plan.shapes:
        raise ArtifactError(f"the export is of shape {shape}, and no row of the job is longer than {job.max_length}")
    target.check_export(directory, shape, toolchain.precision)
    if shape not in plan.shape_plan.shapes:
        planned = ", ".join(map(str, plan.shape_plan.shapes))
        context.say(f"adopt: no plan of this job uses {shape} yet (it has {planned}); name it in shapes to use it")
    return adopt_artifact(
        toolchain.store,
        target,
        model,
        model_dir,
        toolchain.spec(shape),
        directory,
        without_pads(sample_rows(context, plan), model),
        tolerance_of(context, toolchain),
        labelled=labelled_rows(context, plan),
    )
