"""Where the rows of a hub dataset are: a copy under the output, saved once per revision, which every step reads."""

from __future__ import annotations

import re
import tempfile
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.context import Context
from pipeline.errors import JobError, LengthwiseError, StorageError

if TYPE_CHECKING:
    from datasets import Dataset

SCHEME = "hf://"
_SHARD_SIZE = "64MB"
"""Of a copied file; one is in memory while it is uploaded."""
_LAST = "state.json"
"""Written last: a copy without it is unfinished."""


def hub_copy(context: Context, uri: str) -> str:
    """Folder of the copy of `hf://org/name`, made now where it does not exist.

    A full commit id as `input.revision` needs no network once it is copied; anything else is looked up.
    Raises JobError for a mistake in the job, StorageError when the hub is away.
    """
    spec = context.job.input
    name = uri.removeprefix(SCHEME).removeprefix("datasets/").strip("/")
    if spec.split is None:
        raise JobError(f"input.uri: {uri} is a hub dataset; set input.split, for example to train")
    revision = spec.revision or "main"
    if not re.fullmatch("[0-9a-f]{40}", revision):
        revision = _commit(name, revision, uri)
    split = urllib.parse.quote(spec.split, safe="")  # it may be an expression: train[:1000]
    folder = context.layout.hub_dataset(name, spec.config or "default", revision, split)
    if not context.objects.exists(f"{folder}{_LAST}"):
        context.say(f"snapshot: downloading {name} at {revision[:12]}")
        store_dataset(context, _load(context, name, revision), folder)
    return folder


def store_dataset(context: Context, dataset: Dataset, folder: str) -> None:
    """Save to `folder`, in files of bounded size; the first of two processes that do it wins."""
    context.cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=context.cache_dir) as temporary:
        dataset.save_to_disk(temporary, max_shard_size=_SHARD_SIZE)
        for path in sorted(Path(temporary).iterdir(), key=lambda path: (path.name == _LAST, path.name)):
            context.objects.upload_new(path, folder + path.name)


def _commit(name: str, revision: str, uri: str) -> str:
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(name, revision=revision).sha)
    except Exception as error:
        raise _translated(error, uri) from error


def _load(context: Context, name: str, revision: str) -> Any:
    from datasets import disable_progress_bars, load_dataset

    disable_progress_bars()
    spec = context.job.input
    try:
        return load_dataset(
            name, spec.config, split=spec.split, revision=revision, cache_dir=str(context.cache_dir / "datasets")
        )
    except Exception as error:
        raise _translated(error, spec.uri) from error


def _translated(error: Exception, uri: str) -> LengthwiseError:
    """What the two libraries raise, by whether a retry can help."""
    from datasets.data_files import EmptyDatasetError
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    detail = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no details'}"
    wrong = (DatasetsError, EmptyDatasetError, RepositoryNotFoundError, RevisionNotFoundError, HFValidationError)
    if isinstance(error, wrong) or not isinstance(error, OSError):
        return JobError(
            f"input.uri: {uri} cannot be read from the hub ({detail}); check its name, input.config, input.split and "
            "input.revision, and HF_TOKEN for a private one"
        )
    return StorageError(
        f"input.uri: {uri}: the hub did not answer ({detail}); run again, or save the dataset with save_to_disk to S3 "
        "and name that folder"
    )
