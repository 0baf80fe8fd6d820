"""Full disks, read-only folders and clocks that jump: a clean error with its exit code, and the next run continues."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from compile.model import read_model
from compile.planner import make_plan
from jobs import DS, JobHome, make_home, published, put_rows, rows
from pipeline.event_tally import EventTally
from pipeline.events import EventLog, now, read_events, timed, union_seconds
from pipeline.manifest import Manifest
from pipeline.objects import Objects
from pipeline.report import make_report
from pipeline.run_plan import RunPlan
from pipeline.toolchain import job_toolchain

NAMESPACE = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--user", "--map-root-user"])]
"""A mount of a tmpfs that only the commands of one test see."""
SCENARIO = """
set -eu
small=$1 limit=$2 kept=$3; shift 3
mount -t tmpfs -o "$limit" none "$small"
code=0; "$@" > "$kept/first" 2>&1 || code=$?
mount -o remount,rw,size=64m "$small"
echo "$code" > "$kept/code"
"$@" > "$kept/second" 2>&1
cp -r "$small" "$kept/left"
"""


def _namespaces_work() -> bool:
    probe = [*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


needs_namespaces = pytest.mark.skipif(not _namespaces_work(), reason="needs mount namespaces")


def on_a_small_disk(home: JobHome, small: Path, limit: str, **environment: str) -> tuple[int, str, Path]:
    """Run twice with a tmpfs of that limit at `small`, which is enlarged in between; the second run must succeed.

    Returns the first run's exit code and output, and a copy of what lies in `small` in the end.
    """
    kept = home.folder / "kept"
    kept.mkdir()
    small.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pipeline", "run", str(home.file), "--ds", DS]
    done = subprocess.run(
        [*NAMESPACE, "bash", "-c", SCENARIO, "-", str(small), limit, str(kept), *command],
        env={**home.environment, **environment},
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stderr + (kept / "second").read_text()
    return int((kept / "code").read_text()), (kept / "first").read_text(), kept / "left"


@pytest.fixture
def home(tmp_path: Path, tiny_model: Path) -> JobHome:
    """300 rows; their tokens take 60 kB, all of a run 150 kB."""
    put_rows(Objects().put, str(tmp_path), rows(300))
    return make_home(tmp_path, tiny_model, str(tmp_path), workers=2, shapes=["2x128"])


@needs_namespaces
@pytest.mark.parametrize("size", ["30k", "100k"])
def test_a_full_output_disk(home: JobHome, size: str) -> None:
    """While tokens are written, and while a run's results are."""
    home.run()
    undisturbed = {uri.rsplit("/out/")[1]: data for uri, data in published(Objects(), str(home.folder)).items()}
    code, said, left = on_a_small_disk(home, home.folder / "out", f"size={size}")
    assert code == 5, said
    assert "No space left on device; check the path, its permissions and the space" in said
    assert "Traceback" not in said
    tables = [path for table in ("predictions", "rejects") for path in (left / table).rglob("*.parquet")]
    assert {str(path.relative_to(left)): path.read_bytes() for path in tables} == undisturbed


@needs_namespaces
@pytest.mark.parametrize(
    ("limit", "complaint"), [("size=20k", "No space left on device"), ("ro", "Read-only file sys")]
)
def test_a_full_or_read_only_cache(home: JobHome, limit: str, complaint: str) -> None:
    code, said, _ = on_a_small_disk(home, home.folder / "cache", limit)
    assert code == 5, said
    assert complaint in said
    assert "Traceback" not in said


@pytest.mark.parametrize("variable", ["LENGTHWISE_CACHE", "LENGTHWISE_LOCK_DIR"])
def test_a_folder_that_is_a_file(home: JobHome, variable: str) -> None:
    (home.folder / "file").write_bytes(b"")
    done = home.command("run", str(home.file), "--ds", DS, **{variable: f"{home.folder}/file"})
    assert done.returncode == 5, done.stderr
    assert variable in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    """Root may write everywhere, so the check gives that up first."""
    (tmp_path / "d").mkdir(mode=0o500)
    code = (
        "import os, sys; from pipeline.objects.local import LocalObjects; from pipeline.errors import StorageError\n"
        "os.chdir(sys.argv[1])\n"
        "if os.getuid() == 0:\n"
        "    os.chown('.', 65534, 65534); os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "objects = LocalObjects()\n"
        "for call in (objects.put, objects.put_new):\n"
        "    try: call('x', b'1')\n"
        "    except StorageError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "d")], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.count("Permission denied; check the path, its permissions and the space") == 2, done.stderr


def test_an_event_lasts_as_long_as_it_did_whatever_the_wall_clock_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EventLog(Objects(), f"{tmp_path}/events/", step="infer")
    before = now()
    for jump in (-3_600.0, 86_400.0):
        with timed(log, "infer"):
            monkeypatch.setattr(time, "time", lambda jump=jump: before + jump)
    for event in read_events(Objects(), f"{tmp_path}/events/"):
        assert 0 <= event["ended"] - event["started"] < 60
        assert before <= event["started"]


def test_a_failing_event_log_does_not_hide_why_a_step_failed(tmp_path: Path) -> None:
    (tmp_path / "events").write_bytes(b"a file where the folder should be")
    log = EventLog(Objects(), f"{tmp_path}/events/", step="infer")
    with pytest.raises(ValueError, match="the reason"), timed(log, "infer"):
        raise ValueError("the reason")


def test_a_report_over_hosts_with_wrong_clocks_has_no_negative_number(tmp_path: Path, tiny_model: Path) -> None:
    """An hour slow on one host, a day fast on another, and an event that ends before it starts."""
    home = make_home(tmp_path, tiny_model, str(tmp_path))
    context = home.context()
    model = read_model(tiny_model)
    plan_ = make_plan(context.job.shapes, job_toolchain(context, model).costs())
    plan = RunPlan("f" * 32, context.job, DS, "s.json", "t", model, "fp32", plan_, ("a",) * 4, (), ((0,),), 0, None)
    manifest = Manifest("f" * 32, DS, 10, 10, 0, {}, 100, 0, 0, {"predictions": [], "rejects": []})
    shard: dict[str, Any] = {
        "event": "shard", "shape": "4x64", "rows": 4, "batches": 1, "slot_tokens": 256, "real_tokens": 100,
        "load_s": 0.1, "read_s": 0.1, "execute_s": 0.5, "cpu_s": 0.5, "write_s": 0.1, "created": True, "core": 0,
    }  # fmt: skip
    events = []
    for host, offset in (("slow", -3_600.0), ("right", 0.0), ("fast", 86_400.0)):
        at = 1_000_000.0 + offset
        events.append({"event": "infer", "started": at, "ended": at + 5, "host": host})
        events.append({**shard, "shard": len(events), "started": at + 1, "ended": at + 2, "host": host})
    events.append({"event": "infer", "started": 1_000_003.0, "ended": 999_000.0, "host": "right"})
    report = make_report(plan, manifest, EventTally(events), plan_)
    assert report["seconds"]["infer"] == pytest.approx(15)
    assert all(value >= 0 for value in report["seconds"].values())
    assert all(core["busy_share"] >= 0 for core in report["cores"])
    assert report["rows_per_second"] > 0
    assert union_seconds([(5.0, 3.0)]) == 0
