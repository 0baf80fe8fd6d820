"""Which objects of a night belong to Hugging Face datasets saved with `save_to_disk`, in the order of their rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pipeline.errors import JobError
from pipeline.job import Input
from pipeline.objects import ObjectInfo, Objects

_STATE = "state.json"
_DICT = "dataset_dict.json"
_MARKS = (_STATE, _DICT)


def holds_datasets(found: Sequence[ObjectInfo]) -> bool:
    """Whether there is a saved dataset among the objects, or what is left of one."""
    return any(info.uri.endswith((".arrow", "/dataset_info.json", f"/{_DICT}")) for info in found)


def outside_datasets(found: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """Objects that lie in no folder of a saved dataset."""
    folders = {_folder(info.uri) for info in found if info.uri.rpartition("/")[2] in _MARKS}
    return [info for info in found if _folder(info.uri) not in folders and not info.uri.endswith(".arrow")]


def saved_objects(objects: Objects, found: Sequence[ObjectInfo], spec: Input) -> list[ObjectInfo]:
    """Of each saved dataset its state, which is pinned with it, and the Arrow files that the state names.

    Raises JobError for a DatasetDict without `input.split`, a split that it lacks, an unfinished or unknown layout.
    """
    by_uri = {info.uri: info for info in found}
    folders = sorted(_folder(uri) for uri in by_uri if uri.rpartition("/")[2] == _STATE)
    dicts = {_folder(uri): _json(objects, by_uri[uri]) for uri in by_uri if uri.rpartition("/")[2] == _DICT}
    _check_arrow_files(by_uri, folders)
    chosen = [folder for folder in folders if _folder(folder) not in dicts]
    if spec.split is not None and chosen:
        raise JobError(f"{chosen[0]}: input.split is {spec.split!r}, but this is one dataset without splits; remove it")
    for folder, content in sorted(dicts.items()):
        chosen.append(_split_folder(folder, content, spec, folders))
    return [info for folder in sorted(chosen) for info in _dataset(objects, by_uri, folder)]


def _folder(uri: str) -> str:
    return uri.rpartition("/")[0]


def _check_arrow_files(by_uri: dict[str, ObjectInfo], folders: list[str]) -> None:
    for uri in by_uri:
        if uri.endswith(".arrow") and _folder(uri) not in folders:
            raise JobError(
                f"{uri}: no {_STATE} beside it: the dataset was not saved to its end, or not with save_to_disk; "
                "save it again, or convert it to Parquet"
            )


def _split_folder(folder: str, content: Any, spec: Input, folders: list[str]) -> str:
    splits = content.get("splits") if isinstance(content, dict) else None
    if not isinstance(splits, list) or not all(isinstance(name, str) for name in splits):
        raise JobError(f"{folder}/{_DICT}: names no splits; save the dataset again with save_to_disk")
    if spec.split not in splits:
        raise JobError(
            f"{folder}: a DatasetDict: input.split is {spec.split or 'not set'}; choose one of {', '.join(splits)}"
        )
    if f"{folder}/{spec.split}" not in folders:
        raise JobError(f"{folder}/{spec.split}: no {_STATE}; save the dataset again with save_to_disk")
    return f"{folder}/{spec.split}"


def _dataset(objects: Objects, by_uri: dict[str, ObjectInfo], folder: str) -> list[ObjectInfo]:
    """The state and the data files of one dataset."""
    state = by_uri[f"{folder}/{_STATE}"]
    content = _json(objects, state)
    if not isinstance(content, dict) or not isinstance(content.get("_data_files"), list):
        raise JobError(f"{state.uri}: names no data files; save the dataset again with save_to_disk")
    indices = [name for name, value in content.items() if name.startswith("_indices") and value]
    files = content["_data_files"]
    if indices or any(not isinstance(item, dict) or set(item) != {"filename"} for item in files):
        # Written by `datasets` before 1.6: rows in another order than the files', or a part of them.
        raise JobError(
            f"{state.uri}: {indices[0] if indices else '_data_files'} selects or reorders rows, which only old "
            "versions of `datasets` stored; load it and save it again, which writes the rows themselves"
        )
    found = [state]
    for item in files:
        uri = f"{folder}/{item['filename']}"
        if uri not in by_uri:
            raise JobError(f"{state.uri}: names {item['filename']}, which is not there; save the dataset again")
        found.append(by_uri[uri])
    return found


def _json(objects: Objects, info: ObjectInfo) -> Any:
    try:
        return json.loads(objects.get(info.uri, etag=info.etag, stamp=info.stamp))
    except ValueError as error:
        raise JobError(f"{info.uri}: not valid JSON ({error}); save the dataset again with save_to_disk") from error
