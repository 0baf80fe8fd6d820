"""`lengthwise artifacts ...`: what a job's artifact store holds, whether it is sound, and what may go."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.terminal import Ds, JobFile, Json, make_context, show

app = typer.Typer(help="The compiled models of a job's artifact store.", no_args_is_help=True)

Key = Annotated[str, typer.Argument(metavar="KEY", help="artifact key, or its first characters")]
ANY_DATE = "2000-01-01"
"""Artifacts belong to no night."""


@app.command("list")
def list_(job: JobFile, as_json: Json = False) -> None:
    """Every artifact: shape, target, precision, batch milliseconds, parity."""
    from pipeline import render

    found = [manifest.to_json() for manifest in _store(job).list()]
    show({"artifacts": found}, as_json, lambda _: render.artifacts_view(found))


@app.command("show")
def show_(job: JobFile, key: Key) -> None:
    """One artifact's manifest, with its parity record, as JSON."""
    store = _store(job)
    manifest = store.manifest(whole_key(store, key))
    assert manifest is not None
    show(manifest.to_json(), as_json=True, view=str)


@app.command()
def verify(job: JobFile, key: Annotated[str | None, typer.Argument(metavar="[KEY]")] = None) -> None:
    """Read every byte of one artifact, or of all; exit code 4 when any is damaged or not proven."""
    from compile.errors import ArtifactError

    store = _store(job)
    keys = [whole_key(store, key)] if key else store.artifact_keys()
    wrong = [f"{each}: {reason}" for each in keys for reason in store.verify(each)]
    if wrong:
        raise ArtifactError("\n".join(wrong))
    show({}, as_json=False, view=lambda _: f"{len(keys)} artifacts are sound")


@app.command("export")
def export_(job: JobFile, key: Key, folder: Annotated[Path, typer.Argument(metavar="DIR")]) -> None:
    """Write an artifact's files to a folder: of target neuron an export that optimum-neuron loads."""
    import shutil

    from pipeline.errors import JobError

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise JobError(f"{folder} is there and not an empty folder; name another")
    store = _store(job)
    manifest = store.manifest(whole_key(store, key))
    assert manifest is not None
    with store.directory(manifest) as files:
        shutil.copytree(files, folder, dirs_exist_ok=True)
    show({}, False, lambda _: f"{folder}: {len(manifest.files)} files of artifact {manifest.key}")


@app.command()
def adopt(
    job: JobFile,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="what `optimum-cli export neuron` wrote")],
    ds: Ds,
    as_json: Json = False,
) -> None:
    """Make an artifact of an export that was compiled elsewhere, once it passed on rows of that date."""
    from compile.build import verdict
    from pipeline import flow
    from pipeline.adoption import adopt as adopt_export
    from pipeline.run_plan import load_run

    context = make_context(job, ds)
    plan = load_run(context.objects, flow.prepare(context, job)["run"])
    manifest = adopt_export(context, plan, folder)
    show(manifest.to_json(), as_json, lambda _: f"{manifest.spec.shape}: artifact {manifest.key}, {verdict(manifest)}")


@app.command("gc")
def gc_(
    jobs: Annotated[list[Path], typer.Argument(metavar="JOB...", help="all job files that use the store")],
    yes: Annotated[bool, typer.Option("--yes", help="delete; without it, only say what would go")] = False,
) -> None:
    """Delete the artifacts that no frozen plan of the given jobs uses, and blobs unused for a day."""
    from compile.upkeep import gc
    from pipeline.building import frozen_artifacts
    from pipeline.errors import JobError

    contexts = [make_context(job, ANY_DATE) for job in jobs]
    if len({context.artifacts_uri for context in contexts}) > 1:
        raise JobError("these jobs use different artifact stores; collect one store at a time")
    keep = {key for context in contexts for key in frozen_artifacts(context)}
    store = _store(jobs[0])
    doomed = [key for key in store.artifact_keys() if key not in keep]
    result: dict[str, Any] = {"kept": sorted(keep), "dropped": doomed}
    if yes:
        collected = gc(store, keep, time.time())
        result |= {"blobs": collected.blobs, "waiting": collected.waiting}
    verb = "deleted" if yes else "would be deleted (give --yes)"
    show(result, False, lambda _: "\n".join([*doomed, f"{len(doomed)} artifacts {verb}, {len(keep)} kept"]))


def _store(job: Path) -> Any:
    from pipeline.toolchain import artifact_store

    return artifact_store(make_context(job, ANY_DATE))


def whole_key(store: Any, start: str) -> str:
    """The one key that begins so. Raises JobError."""
    from pipeline.errors import JobError

    found = [key for key in store.artifact_keys() if key.startswith(start)]
    if len(found) != 1:
        raise JobError(
            f"{start!r} begins {len(found)} artifact keys in {store.uri}; see: lengthwise artifacts list JOB"
        )
    return str(found[0])
