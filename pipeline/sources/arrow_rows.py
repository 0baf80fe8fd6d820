"""Arrow batches as rows: the columns that the job names, by name or by a path into structs, as Python values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import JobError
from pipeline.job import Input
from pipeline.objects import ObjectInfo
from pipeline.rejects import Reject, reject

Paths = dict[str, tuple[str, ...]]
"""A column that the job names -> the fields that lead to it."""

_SHOWN_CHARS = 500
_REASONS: dict[type[Exception], str] = {UnicodeDecodeError: "invalid_utf8"}


def column_paths(schema: pa.Schema, info: ObjectInfo, spec: Input) -> Paths:
    """Where the schema has the job's columns. Raises JobError: a file that lacks one is a mistake, not bad rows."""
    top = pa.struct(list(schema))
    paths = {}
    for column in spec.all_columns():
        path = (column,) if column in schema.names else tuple(column.split("."))
        count = _occurrences(top, path)
        if count != 1:
            lack = "two columns" if count else "no column"
            raise JobError(f"{info.uri}: {lack} {column!r}; it has: {', '.join(_names(top))[:_SHOWN_CHARS]}")
        paths[column] = path
    return paths


def _occurrences(struct: pa.DataType, path: tuple[str, ...]) -> int:
    """How many columns a path may mean; 0 also where it leads through something that is no struct."""
    if not path:
        return 1
    if not pa.types.is_struct(struct):
        return 0
    found = struct.get_all_field_indices(path[0])
    return len(found) if len(found) != 1 else _occurrences(struct.field(found[0]).type, path[1:])


def _names(struct: pa.DataType, prefix: str = "") -> Iterator[str]:
    for field in struct:
        if pa.types.is_struct(field.type):
            yield from _names(field.type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def batch_values(batch: pa.RecordBatch, paths: Paths) -> list[dict[str, Any] | Reject]:
    """Rows as Python values under the job's names; what has none (bytes that are not UTF-8, a year over 9999) is a
    fault of its row only."""
    return _values(pa.RecordBatch.from_arrays([_column(batch, path) for path in paths.values()], names=list(paths)))


def _column(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    column = batch.column(path[0])
    for name in path[1:]:
        column = pc.struct_field(column, [column.type.get_field_index(name)])  # null where the struct is
    wanted = with_leaves(column.type, _in_microseconds)
    return column if wanted == column.type else column.cast(wanted, safe=False)


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    """Python's datetime has no nanoseconds: pyarrow would raise, or return pandas objects where pandas is installed."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    return pa.duration("us") if kind == pa.duration("ns") else kind


def with_leaves(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with `leaf` applied to what structs, lists and maps in it hold in the end."""

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(with_leaves(field.type, leaf))

    if pa.types.is_struct(kind):
        return pa.struct([inner(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(inner(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(inner(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, inner(kind.item_field), keys_sorted=kind.keys_sorted)
    if pa.types.is_dictionary(kind) and leaf(kind.value_type) != kind.value_type:
        return leaf(kind.value_type)
    return leaf(kind)


def _values(batch: pa.RecordBatch) -> list[dict[str, Any] | Reject]:
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError):
        if batch.num_rows > 1:
            half = batch.num_rows // 2
            return [*_values(batch.slice(0, half)), *_values(batch.slice(half))]
    columns, message, reason = {}, "", ""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            columns[name] = column[0].as_py()
        except (ValueError, OverflowError) as error:
            columns[name] = _raw(column)
            message, reason = f"column {name!r}: {error}", _REASONS.get(type(error), "bad_kept_value")
    return [reject("read", reason, message, columns)]


def _raw(column: pa.Array) -> str | None:
    """The bytes of a text that is not UTF-8, for a person to see."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return bytes(column[0].as_buffer()).decode(errors="backslashreplace")
    return None


@contextlib.contextmanager
def damage_named(info: ObjectInfo, kind: str) -> Iterator[None]:
    """pyarrow raises a bare OSError for a damaged page or footer; what the object store raises passes through."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        message = f"{info.uri}: not a readable {kind} ({error}); mend or remove it, or set input.format"
        raise JobError(message) from error
