"""Where a job's model files are on this machine: a local folder as it is, S3 and the hub through the cache."""

from __future__ import annotations

from pathlib import Path

from compile.errors import ModelError
from compile.model import ModelInfo
from pipeline.context import Context
from pipeline.digests import digest
from pipeline.errors import JobError
from pipeline.objects import ObjectInfo, Objects
from pipeline.workloads import load_workload

_NEEDED = (".json", ".safetensors", ".bin", ".txt", ".model", ".jinja")
"""Extensions of the files that a model folder needs; anything else there is left alone."""


def job_model(context: Context) -> tuple[Path, ModelInfo]:
    """The model's folder and what it is. Raises JobError when it is missing or does not fit the job."""
    named = context.job.model
    folder = fetch_model(named.uri, named.revision, context.objects, context.cache_dir)
    try:
        info = load_workload(context.job.task).read_model(context, folder)
    except ModelError as error:
        raise JobError(f"model.uri {context.job.model.uri}: {error}") from error
    if context.job.max_length > info.max_positions:
        raise JobError(
            f"max_length: {context.job.max_length} exceeds the {info.max_positions} positions of model "
            f"{context.job.model.uri}; lower it"
        )
    return folder, info


def fetch_model(uri: str, revision: str | None, objects: Objects, cache_dir: Path) -> Path:
    """The folder of a model's files. Raises JobError when there are none."""
    if uri.startswith("s3://"):
        return _from_store(objects, uri.rstrip("/") + "/", cache_dir / "models")
    if Path(uri).is_dir():
        return Path(uri)
    if uri.startswith(("/", ".")) or uri.count("/") > 1:
        raise JobError(f"model.uri: there is no folder {uri}; give a folder, s3://bucket/prefix or a hub id")
    return _from_hub(uri, revision, cache_dir / "hub")


def _from_store(objects: Objects, prefix: str, cache_dir: Path) -> Path:
    files = [info for info in objects.list_info(prefix) if _wanted(info, prefix)]
    if not files:
        raise JobError(f"model.uri: no model files under {prefix}; upload config.json, the weights and tokenizer.json")
    folder = cache_dir / digest([[info.uri, info.size_bytes, info.etag] for info in files])
    for info in files:
        path = folder / info.uri[len(prefix) :]
        if not path.is_file() or path.stat().st_size != info.size_bytes:
            objects.download_pinned(info, path)
    return folder


def _wanted(info: ObjectInfo, prefix: str) -> bool:
    name = info.uri[len(prefix) :]
    return "/" not in name and name.endswith(_NEEDED)


def _from_hub(model_id: str, revision: str | None, cache_dir: Path) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        patterns = [f"*{extension}" for extension in _NEEDED]
        return Path(snapshot_download(model_id, revision=revision, cache_dir=cache_dir, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise JobError(
            f"model.uri: {model_id!r} is no folder here and cannot be had from the hub ({type(error).__name__}: "
            f"{str(error).splitlines()[0]}); give a folder or s3://bucket/prefix, or check the id and the network"
        ) from error
