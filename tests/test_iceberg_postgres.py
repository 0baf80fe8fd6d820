"""An Iceberg catalog in PostgreSQL: processes that publish at once, from its first use on, as backfills do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from staging import fingerprint, make_context

from demo.servers.postgres import local_postgres
from pipeline.tables.catalog import find_table, open_catalog

PROCESSES, NIGHTS = 3, 4
PUBLISHER = """
import sys
sys.path[:0] = [".", "tests"]
from pathlib import Path
from staging import make_context, replace, stage
folder, uri, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
catalog = {"name": "test", "type": "sql", "properties": {"uri": uri}}
for night in range(1, 5):
    ds = f"2026-{number + 1:02}-{night:02}"
    context = make_context(folder, str(folder), ds, table="iceberg", catalog=catalog)
    replace(context, stage(context, night, 10 * night))
"""


def test_processes_that_publish_their_nights_at_once_lose_none(tmp_path: Path) -> None:
    with local_postgres(tmp_path / "pg", "lake") as server:
        arguments = [sys.executable, "-c", PUBLISHER, str(tmp_path), server.url]
        processes = [
            subprocess.Popen([*arguments, str(number)], stderr=subprocess.PIPE, text=True, env=dict(os.environ))
            for number in range(PROCESSES)
        ]
        for process in processes:
            _, errors = process.communicate(timeout=500)
            assert process.returncode == 0, errors
        catalog = {"name": "test", "type": "sql", "properties": {"uri": server.url}}
        context = make_context(tmp_path, str(tmp_path), table="iceberg", catalog=catalog)
        table = find_table(context, open_catalog(context), "predictions")
        assert table is not None
        found = Counter(
            (row["ds"].isoformat(), row["fingerprint"])
            for row in table.scan(selected_fields=("ds", "fingerprint")).to_arrow().to_pylist()
        )
    assert found == {
        (f"2026-{number + 1:02}-{night:02}", fingerprint(night)): 10 * night
        for number in range(PROCESSES)
        for night in range(1, NIGHTS + 1)
    }
