"""Whole runs on simulated NeuronCores: a core of its own for every process, also for pieces, and figures of the device.

The target is OpenVINO under another name, with the rule of the Neuron driver that a used core is kept until the process
ends; neuron-ls and neuron-monitor are programs of the test.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from neuron_hosts import devices, neuron_path
from plugins import register_targets
from test_neuron_monitor import FOREVER, LINE

from jobs import DS, JobHome, make_home, published, put_rows, rows
from pipeline.events import read_events
from pipeline.objects import Objects
from pipeline.run_plan import RunPlan, plan_object
from pipeline.shards import assign

DEADLY = "[MASK] kills"
SHAPES = ["8x16", "8x128"]


@pytest.fixture
def host(tmp_path: Path) -> dict[str, str]:
    """The environment of an inf2.xlarge: one device, two cores."""
    (tmp_path / "cores").mkdir()
    return {
        **register_targets(tmp_path / "plugin", {"faulty-neuron": "faulty_neuron_target", "faulty": "faulty_target"}),
        **neuron_path(tmp_path / "bin", devices(1), f"print({LINE!r}, flush=True)\n{FOREVER}"),
        "FAULTY_CORES": str(tmp_path / "cores"),
    }


def home_of(folder: Path, model: Path, texts: list[dict[str, Any]], **fields: Any) -> JobHome:
    put_rows(Objects().put, str(folder), texts)
    return make_home(
        folder, model, str(folder), **{"shapes": ["8x128"], "target": "faulty-neuron", "workers": "auto", **fields}
    )


def loads(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "cores" / "log").read_text().splitlines()]


def finished(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def events_of(home: JobHome) -> list[dict[str, Any]]:
    (run,) = (home.folder / f"out/_lengthwise/runs/ds={DS}").iterdir()
    return list(read_events(Objects(), f"{run}/events/"))


def test_a_run_has_a_worker_per_core_and_the_report_shows_the_device(
    tmp_path: Path, tiny_model: Path, host: dict[str, str]
) -> None:
    home = home_of(tmp_path, tiny_model, rows(100), shapes=SHAPES)
    assert home.command("compile", str(home.file), "--ds", DS, **host).returncode == 0
    gate, seen_by = tmp_path / "gate", tmp_path / "monitors"
    seen_by.mkdir()  # nothing is executed before both workers' monitors have reported
    monitor = f"""import os
print({LINE!r}, flush=True)
open(f"{seen_by}/{{os.getpid()}}", "w").close()
if len(os.listdir({str(seen_by)!r})) == 2: open({str(gate)!r}, "w").close()
{FOREVER}"""
    neuron_path(tmp_path / "bin", devices(1), monitor)
    waits = {"FAULTY": json.dumps({"how": "raise", "times": 0, "log": str(tmp_path / "log"), "wait_for": str(gate)})}
    report = finished(home.command("run", str(home.file), "--ds", DS, "--json", **host, **waits))
    assert (report["predicted"], report["compilations_in_infer"]) == (100, 0)
    done = loads(tmp_path)
    assert {load["step"] for load in done} == {"compile", "infer"}, "what compiles proves it on a core of its own"
    for load in done:
        assert load["cores"] in ("0", "1")
        if load["step"] == "infer":
            assert (load["NEURON_RT_VISIBLE_CORES"], load["NEURON_RT_NUM_CORES"]) == (load["cores"], "1")
            assert load["imported"] == [], "the variables stood before the toolchain was imported"
    assert sum(event["event"] == "infer" for event in events_of(home)) == 2, "workers: auto"
    seen = {event["core"]: event["monitored_s"] for event in events_of(home) if event["event"] == "neuron"}
    assert seen.pop(0) == 5.0
    assert set(seen.values()) <= {0.0}, "the monitor saw core 0 alone"
    first, *others = report["cores"]
    assert (first["core"], first["device_busy_share"], first["device_errors"]) == (0, 0.2, {})
    assert first["device_memory_mb"] == 391.2
    assert all(other["device_busy_share"] is None for other in others), "nothing was reported of core 1"
    shown = home.command("report", str(home.file), "--ds", DS, **host).stdout
    assert "(device 20.0% busy, 391.2 MB, no errors)" in " ".join(shown.split())


@pytest.mark.slow  # a dozen processes; the next test has the essence
def test_rows_that_kill_are_found_by_pieces_on_the_core_of_their_worker(
    tmp_path: Path, tiny_model: Path, host: dict[str, str]
) -> None:
    texts = [{"id": f"r{index}", "text": "so good", "group": "a"} for index in range(24)]
    texts[7]["text"] = f"{DEADLY} {'slowly ' * 20}"  # the only row of its shape, which makes few pieces
    home = home_of(tmp_path, tiny_model, texts, workers=2, shapes=SHAPES, reject_budget={"share": 1})
    assert home.command("compile", str(home.file), "--ds", DS, **host).returncode == 0
    fault = {"FAULTY": json.dumps({"how": "kill"})}
    report = finished(home.command("run", str(home.file), "--ds", DS, "--json", **host, **fault))
    assert (report["predicted"], report["reject_reasons"]) == (23, {"worker_killed": 1})
    pieces = [load for load in loads(tmp_path) if load["step"] == "piece"]
    assert pieces
    assert {load["cores"] for load in loads(tmp_path)} <= {"0", "1"}
    assert {(load["NEURON_RT_VISIBLE_CORES"], load["NEURON_RT_NUM_CORES"]) for load in pieces} <= {
        ("0", "1"),
        ("1", "1"),
    }
    calm = make_home(tmp_path / "calm", tiny_model, str(tmp_path), shapes=["8x128"], target="faulty-neuron",
                     output={"uri": f"{tmp_path}/calm/out"})  # fmt: skip
    finished(calm.command("run", str(calm.file), "--ds", DS, "--json", **host))
    assert report["fingerprint"]


def test_a_worker_that_has_used_its_core_starts_anew_before_it_isolates(
    tmp_path: Path, tiny_model: Path, host: dict[str, str]
) -> None:
    """It has done a shard when it finds that somebody died on the next one; all in one process id."""
    home = home_of(tmp_path, tiny_model, rows(100), workers=1, shapes=SHAPES)
    environment = {**home.environment, **host}
    planned = json.loads(_step(home, environment, "snapshot"))
    _step(home, environment, "tokenize", "--snapshot", planned["snapshot"])
    planned = json.loads(_step(home, environment, "plan", "--snapshot", planned["snapshot"]))
    _step(home, environment, "compile", "--run", planned["run"])
    assert planned["shards"] >= 2
    told = json.loads(Objects().get(plan_object(planned["run"])))
    told["job"]["target"] = "openvino"  # this process does not know the other one
    run = RunPlan.from_json(told)
    (order,) = assign(run.shards, run.shape_plan, 1)
    assert len(order) == 2
    trace = tmp_path / "locks" / "shards" / run.fingerprint / f"{order[1]}.begun"
    trace.parent.mkdir(parents=True)
    trace.touch()
    result = json.loads(_step(home, environment, "infer", "--run", planned["run"]))
    assert result == {"shards": 2, "rows": 100, "compilations": 0}, "of both lives together"
    infer = [event for event in events_of(home) if event["event"] == "infer"]
    assert [event["ok"] for event in infer] == [True, True]
    assert len({event["pid"] for event in infer}) == 1
    assert [event["shards"] for event in sorted(infer, key=lambda event: event["started"])] == [1, 1]
    steps = [load["step"] for load in loads(tmp_path) if load["step"] != "compile"]
    assert steps == ["infer", "piece"]
    assert not trace.exists()


def _step(home: JobHome, environment: dict[str, str], step: str, *arguments: str) -> str:
    done = home.command("step", step, "--job", str(home.file), "--ds", DS, *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("devices_found", "fields", "variables", "said"),
    [
        (1, {}, {"NEURON_RT_VISIBLE_CORES": "2-3"}, "NEURON_RT_VISIBLE_CORES=2-3 names NeuronCore 2, 3, but this host"),
        (1, {}, {"NEURON_RT_NUM_CORES": "4"}, "NEURON_RT_NUM_CORES=4, but this host has 2 NeuronCores (0, 1)"),
        (0, {"workers": 1}, {}, "this host has no NeuronCores: "),
    ],
)
def test_a_missing_core_is_an_error_of_the_job(
    tmp_path: Path, tiny_model: Path, host: dict[str, str], devices_found: int, fields: dict[str, Any],
    variables: dict[str, str], said: str,
) -> None:  # fmt: skip
    home = home_of(tmp_path, tiny_model, rows(40), **fields)
    neuron_path(tmp_path / "bin", devices(devices_found))
    done = home.command("run", str(home.file), "--ds", DS, **host, **variables)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_two_jobs_share_one_core_by_turns(tmp_path: Path, tiny_model: Path, host: dict[str, str]) -> None:
    """Job a has the only core and shards for long; b comes, is given the core after a shard, and both end well."""
    neuron_path(tmp_path / "bin", devices(1, cores_each=1))
    homes = {}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        homes[name] = home_of(tmp_path / name, tiny_model, rows(100), name=name, shapes=SHAPES)
    shared = {**host, "LENGTHWISE_LOCK_DIR": str(tmp_path / "locks"), "LENGTHWISE_TURN_S": "0"}
    gate = tmp_path / "gate"
    slow = {"FAULTY": json.dumps({"how": "raise", "times": 0, "log": str(tmp_path / "log"), "wait_for": str(gate)})}
    for home in homes.values():  # so that what follows compiles nothing
        assert home.command("compile", str(home.file), "--ds", DS, **shared).returncode == 0
    argv = [sys.executable, "-m", "pipeline", "run"]
    first = subprocess.Popen([*argv, str(homes["a"].file), "--ds", DS], stderr=subprocess.PIPE, text=True,
                             env={**homes["a"].environment, **shared, **slow})  # fmt: skip
    with first:
        assert first.stderr is not None
        assert any(line.startswith("plan:") for line in first.stderr)
        second = subprocess.Popen([*argv, str(homes["b"].file), "--ds", DS], stderr=subprocess.PIPE, text=True,
                                  env={**homes["b"].environment, **shared})  # fmt: skip
        with second:
            assert second.stderr is not None
            for line in second.stderr:
                if "waiting for one" in line:
                    gate.touch()
                    break
            second_said = second.stderr.read()
        first_said = first.stderr.read()
    assert (first.returncode, second.returncode) == (0, 0), (first_said, second_said)
    assert "infer: core 0 goes to job b, which has fewer; this worker waits for another" in first_said
    lives = [event for event in events_of(homes["a"]) if event["event"] == "infer"]
    assert len(lives) >= 2
    assert len({event["pid"] for event in lives}) == 1
    results = [published(Objects(), str(tmp_path / name)) for name in homes]
    assert [len(result) for result in results] == [2, 2]
