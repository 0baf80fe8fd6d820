"""Readers in other processes while a partition is published again and again: whole versions only, in both formats."""

from __future__ import annotations

import json
import os
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest
from staging import Reader, fingerprint, make_context, reading, replace, sqlite_catalog, stage

from demo.servers.seaweed import S3Endpoint
from pipeline.context import Context
from pipeline.tables import Staged

SLOW = pytest.mark.slow
ROWS = {0: 300, 1: 700}
"""Rows of the two versions that alternate."""
EXPECTED = {fingerprint(version): [rows, rows * (rows - 1) // 2] for version, rows in ROWS.items()}


def alternating(context: Context, parts: int) -> list[Staged]:
    """The two versions, of which the first is published."""
    versions = [stage(context, version, rows, parts, rejects=0) for version, rows in ROWS.items()]
    replace(context, versions[0])
    return versions


def publish_often(context: Context, versions: list[Staged], reader: Reader, times: int = 50) -> dict[str, Any]:
    for number in range(1, times + 1):
        replace(context, versions[number % 2])
        if number % 10 == 0:  # another night, as in life
            later = changed(context, ds=f"2026-12-{number // 10:02}")
            replace(later, stage(later, number, 3, rejects=0))
    return reader.stop()


@pytest.mark.parametrize("parts", [1, pytest.param(5, marks=SLOW)])
def test_a_glob_over_plain_files_sees_whole_partitions(tmp_path: Path, s3: S3Endpoint, parts: int) -> None:
    """Also where the run has several parts: they become one object, for a glob cannot read several at one moment."""
    context = make_context(tmp_path, f"s3://{s3.bucket}")
    versions = alternating(context, parts)
    with reading("duckdb", f"{context.job.output.uri}/predictions/ds=2026-11-*/*.parquet", EXPECTED) as reader:
        found = publish_often(context, versions, reader)
    assert found["torn"] == []
    assert len(found["seen"]) == 2, "the reader saw both versions"
    # A reader whose file is replaced while it reads it is told so, and reads again: it never gets a mixture.
    assert all("ETag" in error or "404" in error for error in found["refused"]), found["refused"][:3]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("times", [12, pytest.param(50, marks=SLOW)])
def test_iceberg_readers_see_whole_partitions(tmp_path: Path, s3: S3Endpoint, times: int) -> None:
    """No read fails either: what a snapshot refers to stays for `output.grace_hours`."""
    context = make_context(tmp_path, f"s3://{s3.bucket}", **sqlite_catalog(tmp_path))
    versions = alternating(context, 2)
    assert context.job.output.catalog is not None
    place = {
        "type": "sql",
        "s3.endpoint": os.environ["AWS_ENDPOINT_URL"],
        "s3.region": os.environ["AWS_DEFAULT_REGION"],
        **context.job.output.catalog.properties,
    }
    with reading("pyiceberg", json.dumps(place), EXPECTED) as reader:
        found = publish_often(context, versions, reader, times)
    assert (found["torn"], found["refused"]) == ([], [])
    assert len(found["seen"]) == 2
