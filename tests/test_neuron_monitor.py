"""neuron-monitor's documented JSON, also broken, missing, dying and hanging, as events that the report adds up."""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from neuron_hosts import put_program

from pipeline.event_tally import EventTally
from pipeline.events import EventLog, read_events
from pipeline.neuron_monitor import monitored
from pipeline.neuron_usage import CONFIG, Usage
from pipeline.objects import Objects


def runtime(pid: int, usage: dict[int, float], period: float = 5.0, **errors: int) -> dict[str, Any]:
    """One Neuron application, with all fields of AWS's Neuron Monitor User Guide."""
    kinds = ("generic", "numerical", "transient", "model", "runtime", "hardware")
    outcomes = ("completed_with_err", "completed_with_num_err", "timed_out", "incorrect_input", "failed_to_queue")
    percentiles = dict.fromkeys(("p0", "p1", "p25", "p50", "p75", "p99", "p100"), 0.011)
    memory = {"constants": 193986816, "model_code": 176285056, "model_shared_scratchpad": 0, "runtime_memory": 0,
              "tensors": 20971520}  # fmt: skip
    host = {"application_memory": 6996594688, "constants": 0, "dma_buffers": 1048576, "tensors": 0}
    return {
        "pid": pid,
        "address": "",
        "neuron_runtime_tag": str(pid),
        "error": "",
        "report": {
            "neuroncore_counters": {
                "period": period,
                "neuroncores_in_use": {
                    str(core): {"neuroncore_utilization": percent, "flops": 1234567891011}
                    for core, percent in usage.items()
                },
                "error": "",
            },
            "execution_stats": {
                "period": period,
                "error_summary": {kind: errors.get(kind, 0) for kind in kinds},
                "execution_summary": {"completed": 123, **{name: errors.get(name, 0) for name in outcomes}},
                "latency_stats": {"total_latency": percentiles, "device_latency": None},
                "error": "",
            },
            "memory_used": {
                "period": period,
                "neuron_runtime_used_bytes": {
                    "host": 6997643264,
                    "neuron_device": 391243392 * len(usage),
                    "usage_breakdown": {
                        "host": host,
                        "neuroncore_memory_usage": {str(core): memory for core in usage},
                    },
                },
                "loaded_models": [],
                "error": "",
            },
        },
    }


def report(*runtimes: dict[str, Any]) -> dict[str, Any]:
    return {
        "neuron_runtime_data": list(runtimes),
        "system_data": {"memory_info": {"period": 0.1, "memory_total_bytes": 33110204416, "error": ""}},
        "instance_info": {"instance_type": "inf2.xlarge", "error": ""},
        "neuron_hardware_info": {"neuron_device_count": 1, "neuroncore_per_device_count": 2, "error": ""},
    }


def line(*runtimes: dict[str, Any]) -> str:
    return json.dumps(report(*runtimes)) + "\n"


def test_the_reports_of_a_worker_are_added_up() -> None:
    usage = Usage((1,))
    usage.add(line(runtime(10, {0: 90.0}), runtime(11, {1: 42.0}, hardware=2)))
    usage.add(line(runtime(11, {1: 100.2}, period=2.5, hardware=1, timed_out=4), runtime(10, {0: 90.0}, generic=9)))
    usage.add(line())
    assert usage.event() == {
        "reports": 3, "unreadable": 0, "monitored_s": 7.5, "busy_s": 4.6, "device_memory_bytes": 391243392,
        "completed": 246, "errors": {"hardware": 3, "timed_out": 4},
        "cores": [{"core": 1, "busy_s": 4.6, "device_memory_bytes": 391243392}],
    }  # fmt: skip


def test_cores_of_one_copy_are_told_apart_and_averaged() -> None:
    usage = Usage((2, 3))
    usage.add(line(runtime(7, {2: 50.0, 3: 10.0})))
    event = usage.event()
    assert (event["monitored_s"], event["busy_s"], event["device_memory_bytes"]) == (5.0, 1.5, 2 * 391243392)
    assert [core["busy_s"] for core in event["cores"]] == [2.5, 0.5]


def test_an_idle_runtime_of_ours_counts_as_idle() -> None:
    usage = Usage((0,), pids=(7,))
    usage.add(line(runtime(7, {})))
    assert (usage.event()["monitored_s"], usage.event()["busy_s"]) == (5.0, 0.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "garbage",
        "{",
        "[]",
        "7",
        "null",
        '"x"',
        "\ufffd\x00",
        "[" * 100_000,
        '{"neuron_runtime_data": [',
        "NaN",
    ],
)
def test_a_line_that_is_no_report_is_counted(text: str) -> None:
    usage = Usage((0,))
    usage.add(text)
    usage.add(line(runtime(1, {0: 20.0})))
    assert (usage.unreadable, usage.reports, usage.event()["busy_s"]) == (1, 1, 1.0)


def paths(value: Any) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    if isinstance(value, list):
        items = list(enumerate(value))
    return [(), *((key, *path) for key, item in items for path in paths(item))]


def broken(value: Any, path: tuple[Any, ...], how: Any) -> Any:
    """A copy with one place replaced, or taken out for `how` KeyError."""
    copy = json.loads(json.dumps(value))
    place = copy
    for key in path[:-1]:
        place = place[key]
    if how is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = how
    return copy


@pytest.mark.parametrize("how", [KeyError, None, "x", [], {}, [[]], -1, 1e400, {"error": "driver not running"}, True])
def test_whatever_is_missing_or_wrong_in_a_report_is_left_out(how: Any) -> None:
    """Each place of a report broken once: never an exception, never a figure that is no number from 0."""
    whole = report(runtime(1, {0: 20.0}, model=1))
    for path in paths(whole)[1:]:
        usage = Usage((0,))
        usage.add(json.dumps(broken(whole, path, how)))
        event = usage.event()
        assert usage.unreadable == 0
        assert 0 <= event["busy_s"] <= max(event["monitored_s"], 0)
        assert event["busy_s"] in (0.0, 1.0), path
        assert event["device_memory_bytes"] in (0, 391243392), path
        json.dumps(event, allow_nan=False)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_at_random_are_survived(seed: int) -> None:
    rng = random.Random(seed)
    usage = Usage((0,))
    for _ in range(50):
        text = bytearray(line(runtime(1, {0: 20.0})).encode())
        for _ in range(rng.randint(1, 30)):
            text[rng.randrange(len(text))] = rng.randrange(256)
        usage.add(text.decode(errors="replace"))
    assert usage.reports + usage.unreadable == 50
    json.dumps(usage.event(), allow_nan=False)


def sampled(folder: Path, monitor: str | None, monkeypatch: pytest.MonkeyPatch, window_s: float = 60) -> Any:
    """What a worker on core 0 logs with this neuron-monitor, whose line `ready` the body waits for."""
    monkeypatch.setenv("LENGTHWISE_LOCK_DIR", str(folder / "locks"))
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder / "bin"), os.environ["PATH"]]))
    said: list[str] = []
    os.mkfifo(folder / "ready")
    if monitor is not None:
        put_program(folder / "bin", "neuron-monitor", monitor.replace("READY", f"open({str(folder / 'ready')!r}, 'w')"))
    log = EventLog(Objects(), f"{folder}/events/", step="monitor", index=0)
    with monitored((0,), log, said.append, window_s):
        if monitor is not None:
            assert (folder / "ready").read_text() == ""
    events = list(read_events(Objects(), f"{folder}/events/")) if (folder / "events").exists() else []
    return events, said


LINE = json.dumps(report(runtime(1, {0: 20.0})))
FOREVER = "import time\nwhile True: time.sleep(60)\n"


def test_a_monitor_is_sampled_until_the_worker_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"import sys\nassert sys.argv[1] == '-c'\nconfig = open(sys.argv[2]).read()\nprint({LINE!r})\nprint('x')\n"
    code += (
        f"print({LINE!r}, flush=True)\nopen({str(tmp_path / 'seen')!r}, 'w').write(config)\nREADY.close()\n{FOREVER}"
    )
    events, said = sampled(tmp_path, code, monkeypatch)
    assert json.loads((tmp_path / "seen").read_text()) == CONFIG
    assert said == []
    (event,) = events
    assert (event["event"], event["step"], event["core"]) == ("neuron", "monitor", 0)
    assert (event["reports"], event["unreadable"], event["monitored_s"], event["busy_s"]) == (2, 1, 10.0, 2.0)
    tally = EventTally(events)
    (usage,) = tally.devices.values()
    assert (usage.busy_s, usage.monitored_s, usage.memory_bytes) == (2.0, 10.0, 391243392)
    assert tally.steps == []


def test_a_window_is_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"for _ in range(3): print({LINE!r}, flush=True)\nREADY.close()\n{FOREVER}"
    events, _ = sampled(tmp_path, code, monkeypatch, window_s=0)
    assert [event["reports"] for event in events] == [1, 1, 1]


@pytest.mark.parametrize(
    ("code", "reports"),
    [
        (f"READY.close()\n{FOREVER}", None),
        (
            f"import signal\nfor number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)\nREADY.close()\n{FOREVER}",
            None,
        ),
        (f"print({LINE!r}, flush=True)\nREADY.close()\nimport os\nos.abort()\n", 1),
        ("READY.close()\nraise SystemExit(3)\n", None),
        (f"import sys\nsys.stdout.write('x' * 9_000_000)\nsys.stdout.flush()\nREADY.close()\n{FOREVER}", 0),
    ],
    ids=["hangs", "hangs and ignores signals", "dies", "ends at once", "floods"],
)
def test_a_bad_monitor_is_no_matter_of_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reports: int | None
) -> None:
    events, said = sampled(tmp_path, code, monkeypatch)
    assert said == []
    assert [event["reports"] for event in events] == ([] if reports is None else [reports])


def test_a_host_without_one_logs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    assert sampled(tmp_path, None, monkeypatch) == ([], [])
    assert threading.active_count() == before


def test_a_hanging_monitor_dies_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    put_program(tmp_path / "bin", "neuron-monitor", f"import os, sys\nprint(os.getpid(), file=sys.stderr)\n"
                f"open({str(tmp_path / 'ready')!r}, 'w').write(str(os.getpid()))\n{FOREVER}")  # fmt: skip
    os.mkfifo(tmp_path / "ready")
    code = """
import os, sys
from pipeline.events import EventLog
from pipeline.neuron_monitor import monitored
from pipeline.objects import Objects
with monitored((0,), EventLog(Objects(), sys.argv[1]), print):
    sys.stdin.read()
"""
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]]),
        "LENGTHWISE_LOCK_DIR": str(tmp_path / "locks"),
    }
    argv = [sys.executable, "-c", code, f"{tmp_path}/events/"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, env=environment) as worker:
        monitor = os.pidfd_open(int((tmp_path / "ready").read_text()))
        worker.kill()
    assert select.select([monitor], [], [], 60)[0], "ended"
    os.close(monitor)
