"""The Iceberg catalog and tables of a job: opened, made on first use, grown with the declared schema. Heavy imports."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

from pipeline.columns import type_name
from pipeline.context import Context
from pipeline.errors import JobError, StorageError

PARTITION_COLUMN = "ds"
"""A date, the last column; unlike in the plain layout it is in the files, as every Iceberg reader expects."""

ICEBERG_TYPES: dict[str, IcebergType] = {
    "string": StringType(),
    "bool": BooleanType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "date": DateType(),
    "timestamp": TimestampType(),
}
PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    # We look again before we try again: the partition itself may have been replaced.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
_FIRST_USE_ATTEMPTS = 5
Made = TypeVar("Made")
_LIBRARIES = {"pyiceberg", "sqlalchemy", "psycopg2", "sqlite3", "requests", "botocore"}


def open_catalog(context: Context) -> Catalog:
    """Raises JobError for settings that are no catalog's, StorageError when it does not answer."""
    named = context.job.output.catalog
    assert named is not None
    properties = {**_object_store(), **named.properties}
    if named.type is not None:
        properties["type"] = named.type
    try:
        with translated(f"catalog {named.name}"):
            return _at_first_use(lambda: load_catalog(named.name, **properties))
    except (ValueError, KeyError, ImportError) as error:
        raise JobError(
            f"output.catalog {named.name}: {error}; give its type and properties in the job file, or in variables such "
            f"as PYICEBERG_CATALOG__{named.name.upper().replace('-', '_')}__URI"
        ) from error


def _at_first_use(make: Callable[[], Made]) -> Made:
    """Try again while a SQL catalog says that others are making the same things at the same time."""
    for attempt in range(_FIRST_USE_ATTEMPTS):
        try:
            return make()
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "sqlalchemy" or attempt == _FIRST_USE_ATTEMPTS - 1:
                raise
            time.sleep(0.2 * (attempt + 1))
    raise AssertionError("unreachable: the last attempt returns or raises")


def _object_store() -> dict[str, str]:
    """What pyarrow's S3 client does not take from the AWS environment by itself."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return {**({"s3.endpoint": endpoint} if endpoint else {}), **({"s3.region": region} if region else {})}


def identifier(context: Context, table: str) -> tuple[str, str]:
    """Namespace and name, for example `reviews_sentiment.predictions`."""
    named = context.job.output.catalog
    assert named is not None
    return named.namespace or re.sub(r"[^a-z0-9_]", "_", context.job.name.lower()), table


def find_table(context: Context, catalog: Catalog, table: str) -> Table | None:
    """None before the first publish. Raises StorageError."""
    try:
        with translated(f"Iceberg table {'.'.join(identifier(context, table))}", passing=NoSuchTableError):
            return catalog.load_table(identifier(context, table))
    except NoSuchTableError:
        return None


def make_table(context: Context, catalog: Catalog, table: str, columns: pa.Schema) -> Table:
    """The table, with at least these columns and `ds`. Several processes may make it at the same time."""
    name = identifier(context, table)
    wanted = iceberg_schema(columns)
    spec = PartitionSpec(
        PartitionField(
            source_id=wanted.find_field(PARTITION_COLUMN).field_id,
            field_id=1000,
            transform=IdentityTransform(),
            name=PARTITION_COLUMN,
        )
    )

    def make() -> Table:
        catalog.create_namespace_if_not_exists(name[0])
        location = f"{context.job.output.uri}/{table}"
        return catalog.create_table_if_not_exists(name, wanted, location, spec, properties=PROPERTIES)

    with translated(f"Iceberg table {'.'.join(name)}"):
        found = _at_first_use(make)
    _grow(found, wanted)
    return found


def check_growth(context: Context, catalog: Catalog, table: str, columns: pa.Schema) -> None:
    """Raises JobError when the table is there and cannot get these columns; changes nothing."""
    found = find_table(context, catalog, table)
    if found is not None:
        with _growing(found):
            found.update_schema().union_by_name(iceberg_schema(columns))


def _grow(table: Table, wanted: Schema) -> None:
    """Add columns and widen types, as an accepted change of the declared schema says. Raises JobError, StorageError."""
    present = {field.name: str(field.field_type) for field in table.schema().fields}
    if all(present.get(field.name) == str(field.field_type) for field in wanted.fields):
        return
    with _growing(table), table.update_schema() as update:
        update.union_by_name(wanted)


@contextmanager
def _growing(table: Table) -> Iterator[None]:
    """A change that Iceberg does not know as a JobError, errors of the catalog as StorageError."""
    name = ".".join(table.name())
    try:
        with translated(f"Iceberg table {name}", passing=ValidationError):
            yield
    except (ValidationError, ValueError) as error:
        raise JobError(
            f"Iceberg table {name} cannot change so: {error}; keep the column under another name, or use another "
            "output.uri and namespace"
        ) from error


def object_uri(path: str) -> str:
    """A path of Iceberg metadata, which other engines write in their own ways, as `pipeline.objects` names it."""
    scheme, separator, rest = path.partition("://")
    if not separator:
        return path.removeprefix("file:")
    return rest if scheme == "file" else f"s3://{rest}" if scheme in ("s3a", "s3n") else path


def iceberg_schema(columns: pa.Schema) -> Schema:
    """Field ids 1, 2, ...; every column may be null, as in the plain files."""
    nested = itertools.count(len(columns) + 2)
    all_columns = enumerate([*columns, pa.field(PARTITION_COLUMN, pa.date32())], start=1)
    fields = [
        NestedField(number, column.name, _kind(column.type, nested), required=False) for number, column in all_columns
    ]
    return Schema(*fields)


def _kind(kind: pa.DataType, ids: Iterator[int]) -> IcebergType:
    """The type with fresh ids for what is in it."""
    if pa.types.is_list(kind):
        return ListType(next(ids), _kind(kind.value_type, ids), element_required=False)
    if pa.types.is_struct(kind):
        own = [(next(ids), field) for field in kind]
        return StructType(*(NestedField(i, field.name, _kind(field.type, ids), required=False) for i, field in own))
    return ICEBERG_TYPES[type_name(kind)]


def file_schema(table: Table, columns: pa.Schema) -> pa.Schema:
    """The columns and `ds` as they are written: with the table's field ids, by which Iceberg readers find them."""
    fields = []
    for field in [*columns, pa.field(PARTITION_COLUMN, pa.date32())]:
        own = table.schema().find_field(field.name)
        fields.append(_identified(pa.field(field.name, _with_ids(field.type, own.field_type)), own.field_id))
    return pa.schema(fields)


def _with_ids(kind: pa.DataType, own: IcebergType) -> pa.DataType:
    if isinstance(own, ListType):
        element = pa.field("element", _with_ids(kind.value_type, own.element_type))
        return pa.list_(_identified(element, own.element_id))
    if isinstance(own, StructType):
        inner = [(field, own.field_by_name(field.name)) for field in kind]
        assert all(found is not None for _, found in inner)  # the table was grown by these columns
        return pa.struct(
            [
                _identified(pa.field(field.name, _with_ids(field.type, found.field_type)), found.field_id)
                for field, found in inner
                if found is not None
            ]
        )
    return kind


def _identified(field: pa.Field, field_id: int) -> pa.Field:
    return field.with_metadata({"PARQUET:field_id": str(field_id)})


@contextmanager
def translated(what: str, passing: type[Exception] | tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Errors of the catalog and its store as StorageError, except those of type `passing`."""
    try:
        yield
    except passing:
        raise
    except Exception as error:
        if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _LIBRARIES:
            text = str(error).strip().splitlines() or [""]
            raise StorageError(f"{what}: {type(error).__name__}: {text[0]}; check output.catalog, run again") from error
        raise
