"""The text of a job file as plain data. Stricter than YAML, and every mistake has its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import JobError


class _Loader(yaml.SafeLoader):
    """YAML itself lets the last of two equal keys win silently, and does not say where a date that is none stands."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:  # a date such as 2026-13-45
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        # `<<` merges another mapping, whose keys may be given again.
        own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        keys = [self.construct_object(key, deep=True) for key in own]
        for place, key in enumerate(keys):
            if key in keys[:place]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", own[place].start_mark
                )
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """What the file says. Raises JobError with the line where it is no YAML of ours."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise JobError(f"{path}: is not UTF-8 ({error}); save it as UTF-8") from error
    except OSError as error:
        raise JobError(
            f"{path}: cannot be read ({error}); give the path of a job file, for example jobs/x.yaml"
        ) from error
    try:
        loader = _Loader(text)
        loader.name = str(path)  # of the marks in messages
        return loader.get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise JobError(f"{path}: not valid YAML: {error}") from error
