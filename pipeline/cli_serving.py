"""`lengthwise package` and `lengthwise deploy`: an artifact as a SageMaker archive, and what serves it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli_artifacts import ANY_DATE, whole_key
from pipeline.terminal import JobFile, Json, make_context, say, show

if TYPE_CHECKING:
    from pipeline.sagemaker_requests import Deployment


def package(
    job: JobFile,
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="artifact key, or its first characters")] = None,
    shape: Annotated[str | None, typer.Option(metavar="BxL", help="the artifact of that shape, such as 8x128")] = None,
    to: Annotated[str, typer.Option("--to", metavar="URI", help="path or s3:// URI of the archive")] = "model.tar.gz",
    as_json: Json = False,
) -> None:
    """Make a SageMaker archive (model.tar.gz) of one artifact of target neuron; without KEY of the longest shape."""
    from compile.shapes import Shape
    from pipeline import packaging
    from pipeline.errors import JobError
    from pipeline.toolchain import artifact_store

    context = make_context(job, ANY_DATE)
    store = artifact_store(context)
    if key and shape:
        raise JobError("give a KEY or --shape, not both")
    if not to.endswith(".tar.gz"):
        raise JobError(f"--to {to}: SageMaker takes archives that end in .tar.gz")
    try:
        wanted = Shape.parse(shape) if shape else None
    except ValueError as error:
        raise JobError(f"--shape: {error}") from None
    manifest = store.manifest(whole_key(store, key)) if key else packaging.choose(store.list(), wanted)
    assert manifest is not None
    found = packaging.package(store, manifest, context.objects, to if "://" in to else str(Path(to).absolute()))
    show(found, as_json, _package_view)


def deploy(
    archive: Annotated[str, typer.Argument(metavar="ARCHIVE", help="s3:// URI that lengthwise package wrote")],
    name: Annotated[str, typer.Option("--name", help="of the endpoint or job; begins the names of all that is made")],
    role: Annotated[str, typer.Option("--role", metavar="ARN", help="role that SageMaker takes")],
    image: Annotated[str, typer.Option("--image", metavar="URI", help="Hugging Face container for Neuron inference")],
    instance_type: Annotated[str, typer.Option("--instance-type")] = "ml.inf2.xlarge",
    instances: Annotated[int, typer.Option("--instances", min=1)] = 1,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="default: one per NeuronCore")] = None,
    transform: Annotated[
        tuple[str, str] | None,
        typer.Option("--transform", metavar="IN OUT", help="a batch transform job instead, from and to s3:// prefixes"),
    ] = None,
    region: Annotated[str | None, typer.Option("--region", help="default: AWS_DEFAULT_REGION")] = None,
    timeout_minutes: Annotated[float, typer.Option("--timeout-minutes", min=0, help="of waiting")] = 60.0,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="end once SageMaker was asked")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the requests as JSON, send none")] = False,
    as_json: Json = False,
) -> None:
    """Serve an archive on SageMaker: an endpoint (made, or brought to this version), or a batch transform job."""
    from pipeline import deploying
    from pipeline.sagemaker_requests import Deployment

    wanted = _checked(Deployment(name, archive, "", role, image, instance_type, instances, workers or 0, transform))
    if dry_run:
        show(wanted.requests(), as_json=True, view=str)
        return
    service = deploying.SageMaker(deploying.client(region), say, timeout_minutes * 60)
    found = service.transform(wanted, not no_wait) if transform else service.serve(wanted, not no_wait)
    show(found, as_json, _deployed_view)


def _checked(wanted: Deployment) -> Deployment:
    """With what is known once the archive was looked at: its ETag, and the workers. Raises JobError."""
    import dataclasses

    from pipeline import packaging
    from pipeline.objects import Objects
    from pipeline.sagemaker_requests import check, check_instance, workers_of

    check(wanted)
    objects = Objects()
    spec = packaging.origin_of(objects, wanted.archive)["spec"]
    check_instance(wanted.instance_type, spec["options"]["instance_type"])
    if any("testdouble" in version for version in spec["versions"].values()):
        say("note: this archive was compiled by the tests' double of the Neuron SDK; no device loads it")
    workers = wanted.workers or workers_of(wanted.instance_type)
    return dataclasses.replace(wanted, etag=objects.head(wanted.archive).etag, workers=workers)


def _package_view(found: dict[str, Any]) -> str:
    return (
        f"{found['uri']}: {found['size_bytes'] / 1e6:.1f} MB, artifact {found['artifact']}, shape {found['shape']}, "
        f"for {found['instance_type']}"
    )


def _deployed_view(found: dict[str, Any]) -> str:
    what = f"endpoint {found['endpoint']}" if "endpoint" in found else f"transform job {found['transform_job']}"
    return f"{what}: {found['status'] or 'asked for'}, version {found['version']}"


def add_to(app: typer.Typer) -> None:
    """As commands of their own."""
    app.command()(package)
    app.command()(deploy)
