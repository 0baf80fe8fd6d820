"""Staged parts without a model, for tests of publishing; and reader processes that watch a partition meanwhile."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from jobs import DS
from pipeline.columns import table_schemas, type_name
from pipeline.context import Context
from pipeline.job import parse_job
from pipeline.objects import Objects
from pipeline.parquet_files import parquet_bytes
from pipeline.tables import Staged, StagedPart, table_format

LABELS = ("bad", "good")
EXAMPLES: dict[str, Any] = {
    "string": "text",
    "bool": True,
    "date": datetime.date(2026, 11, 1),
    "timestamp": datetime.datetime(2026, 11, 1, 2, 3),
    "list<string>": ["a", "b"],
    "list<float>": [0.25, 0.75],
}


def make_context(folder: Path, root: str, ds: str = DS, **output: Any) -> Context:
    """A context for a job that is never run: output under `root`/out."""
    job = {
        "name": "tiny",
        "model": {"uri": "m"},
        "input": {"uri": f"{root}/in/", "text": "text"},
        "output": {"uri": f"{root}/out", **output},
    }
    return Context(parse_job(job, "test"), ds, Objects(), folder / "cache")


def sqlite_catalog(folder: Path) -> dict[str, Any]:
    """Output fields of an Iceberg job whose catalog is a SQLite file."""
    properties = {"uri": f"sqlite:///{folder}/catalog.db"}
    return {"table": "iceberg", "catalog": {"name": "test", "type": "sql", "properties": properties}}


def fingerprint(version: int) -> str:
    return f"{version:032x}"


def stage(context: Context, version: int, rows: int, parts: int = 1, rejects: int = 2) -> Staged:
    """A version whose predictions number their rows from 0 in `source_row`, in several parts of about equal size."""
    schemas = table_schemas(context.job, LABELS, "single_label")
    counts = {"predictions": rows, "rejects": rejects}
    staged = {}
    for table, schema in schemas.items():
        staged[table] = []
        for part in range(parts):
            start, stop = counts[table] * part // parts, counts[table] * (part + 1) // parts
            data = parquet_bytes(_numbered(schema, version, start, stop))
            uri = f"{context.layout.run(context.ds, fingerprint(version))}/{table}/part-{part:05d}.parquet"
            context.objects.put(uri, data)
            staged[table].append(StagedPart(uri, hashlib.sha256(data).hexdigest()))
    return Staged(fingerprint(version), staged, counts)


def _numbered(schema: pa.Schema, version: int, start: int, stop: int) -> pa.Table:
    columns = []
    for field in schema:
        value = fingerprint(version) if field.name == "fingerprint" else EXAMPLES.get(type_name(field.type), version)
        numbers = range(start, stop) if field.name == "source_row" else [value] * (stop - start)
        columns.append(pa.array(numbers, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def replace(context: Context, staged: Staged) -> dict[str, list[dict[str, Any]]]:
    tables = table_format(context)
    return tables.replace(context, staged, tables.look(context))


READER = """
import json, os, sys, threading
kind, place, expected = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
if kind == "pyiceberg":
    from pyiceberg.catalog import load_catalog
    catalog = load_catalog("test", **json.loads(place))
    def read():
        table = catalog.load_table("tiny.predictions").scan("ds == '2026-11-24'").to_arrow()
        found = {}
        for fingerprint, row in zip(table["fingerprint"].to_pylist(), table["source_row"].to_pylist()):
            count, total = found.get(fingerprint, (0, 0))
            found[fingerprint] = (count + 1, total + row)
        return found
else:
    import duckdb, duckdb_extensions
    connection = duckdb.connect(config={"threads": 1})
    duckdb_extensions.import_extension("httpfs")
    connection.execute("LOAD httpfs")
    connection.execute(
        f"CREATE SECRET (TYPE s3, KEY_ID '{os.environ['AWS_ACCESS_KEY_ID']}', "
        f"SECRET '{os.environ['AWS_SECRET_ACCESS_KEY']}', REGION '{os.environ['AWS_DEFAULT_REGION']}', "
        f"ENDPOINT '{os.environ['AWS_ENDPOINT_URL'].removeprefix('http://')}', URL_STYLE 'path', USE_SSL false)"
    )
    def read():
        query = f"SELECT fingerprint, count(*), sum(source_row) FROM read_parquet('{place}') GROUP BY 1"
        return {name: (count, int(total)) for name, count, total in connection.execute(query).fetchall()}
seen, torn, refused = {}, [], []
while True:
    last = stop.is_set()
    try:
        found = read()
    except Exception as error:
        refused.append(f"{type(error).__name__}: {error}")
    else:
        whole = [name for name, (count, total) in found.items() if [count, total] == expected.get(name)]
        if len(found) == 1 and whole:
            seen[whole[0]] = seen.get(whole[0], 0) + 1
        else:
            torn.append(found)
    if not (seen or torn or refused) or len(seen) + len(torn) + len(refused) == 1:
        print("reading", flush=True)
    if last:
        break
print(json.dumps({"seen": seen, "torn": torn, "refused": refused}), flush=True)
"""


class Reader:
    """Another process that reads the partition over and over until `stop`."""

    def __init__(self, kind: str, place: str, expected: dict[str, list[int]]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", READER, kind, place, json.dumps(expected)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "reading\n"

    def stop(self) -> dict[str, Any]:
        """Versions seen whole and how often, torn reads, and reads that ended with an error."""
        output, _ = self._process.communicate(timeout=300)
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def reading(kind: str, place: str, expected: dict[str, list[int]]) -> Iterator[Reader]:
    reader = Reader(kind, place, expected)
    try:
        yield reader
    finally:
        reader.kill()
