"""Which NeuronCores a process may use: neuron-ls as documented, the runtime's variables, errors with advice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from neuron_hosts import GIB, devices, neuron_path, put_program

from pipeline.cores import CorePool, neuron_pool
from pipeline.errors import JobError, WorkerError
from pipeline.job import parse_job
from pipeline.neuron_devices import core_range, list_devices, parse_devices, usable_cores

# As captured from a trn1.2xlarge by others: numbers and strings stand where they do there.
TRN1 = """[
    {
        "neuron_device": 0,
        "bdf": "0000:00:1e.0",
        "cpu_affinity": "0-7",
        "numa_node": "-1",
        "connected_to": null,
        "nc_count": 2,
        "memory_size": 34359738368,
        "neuroncore_ids": [
            0,
            1
        ],
        "neuron_processes": []
    }
]"""
# As in AWS's guide of an Inf1: without neuroncore_ids, with processes.
INF1 = """[
    {"neuron_device": 0, "bdf": "0000:00:1c.0", "connected_to": [1], "nc_count": 4, "memory_size": 8589934592,
     "neuron_processes": [{"pid": 23518, "command": "neuron-app01 infer", "neuron_runtime_version": "2.0.0"},
                          {"pid": 23531, "command": "", "neuron_runtime_version": "2.0.0"}]},
    {"neuron_device": 1, "bdf": "0000:00:1d.0", "connected_to": [2, 0], "nc_count": 4, "memory_size": 8589934592,
     "neuron_processes": null}
]"""


def test_devices_of_a_new_and_an_old_version() -> None:
    (one,) = parse_devices(TRN1)
    assert (one.index, one.cores, one.memory_bytes, one.connected_to, one.processes) == (0, (0, 1), 32 * GIB, (), ())
    first, second = parse_devices(INF1)
    assert (first.cores, second.cores) == ((0, 1, 2, 3), (4, 5, 6, 7)), "counted on from device to device"
    assert first.processes == ((23518, "neuron-app01 infer"), (23531, ""))
    assert (second.connected_to, second.processes) == ((2, 0), ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no JSON: ''"),
        ("Neuron devices: 2", "no JSON"),
        ('{"neuron_devices": []}', "no JSON array"),
        ('[{"neuron_device": 0, "memory_size": 1}]', "a device without 'nc_count'"),
        ('[{"neuron_device": 0, "nc_count": "many", "memory_size": 1}]', "not a device"),
        ("[7]", "not a device: 7"),
        ('[{"neuron_device": 0, "nc_count": 2, "memory_size": 1, "neuron_processes": [{}]}]', "without 'pid'"),
    ],
)
def test_output_that_is_no_list_of_devices(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_devices(text)


@pytest.mark.parametrize(
    ("environment", "cores"),
    [
        ({}, [0, 1, 2, 3]),
        ({"NEURON_RT_VISIBLE_CORES": "", "NEURON_RT_NUM_CORES": "0"}, [0, 1, 2, 3]),
        ({"NEURON_RT_VISIBLE_CORES": "2"}, [2]),
        ({"NEURON_RT_VISIBLE_CORES": "1-3"}, [1, 2, 3]),
        ({"NEURON_RT_VISIBLE_CORES": "3, 0-1"}, [0, 1, 3]),
        ({"NEURON_RT_NUM_CORES": "2"}, [0, 1]),
        ({"NEURON_RT_NUM_CORES": "1", "NEURON_RT_VISIBLE_CORES": "2-3"}, [2, 3]),
    ],
)
def test_what_the_environment_leaves(environment: dict[str, str], cores: list[int]) -> None:
    assert usable_cores([3, 1, 2, 0], environment) == cores


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"NEURON_RT_VISIBLE_CORES": "1-2"}, "VISIBLE_CORES=1-2 names NeuronCore 2, but this host has 0, 1; correct"),
        ({"NEURON_RT_VISIBLE_CORES": "8"}, "names NeuronCore 8, but this host has 0, 1"),
        ({"NEURON_RT_VISIBLE_CORES": "3-1"}, "VISIBLE_CORES=3-1 is not a NeuronCore or a range of them; write"),
        ({"NEURON_RT_VISIBLE_CORES": "all"}, "VISIBLE_CORES=all is not a NeuronCore"),
        ({"NEURON_RT_VISIBLE_CORES": "0-99999999999"}, "is not a NeuronCore"),
        ({"NEURON_RT_NUM_CORES": "3"}, r"NUM_CORES=3, but this host has 2 NeuronCores \(0, 1\); write a number up to"),
        ({"NEURON_RT_NUM_CORES": "-1"}, "NUM_CORES=-1, but this host has 2"),
    ],
)
def test_cores_that_are_not_there(environment: dict[str, str], said: str) -> None:
    with pytest.raises(JobError, match=said):
        usable_cores([0, 1], environment)


def test_copies_side_by_side() -> None:
    assert neuron_pool([0, 1, 2, 3], 1) == CorePool("neuron", ((0,), (1,), (2,), (3,)))
    assert neuron_pool([0, 1, 2, 3, 4], 2).groups == ((0, 1), (2, 3))
    assert neuron_pool([0, 2, 3, 5, 6, 7], 2).groups == ((2, 3), (5, 6)), "neighbours only: the runtime takes a range"
    assert (core_range((4,)), core_range((4, 5, 6))) == ("4", "4-6")
    with pytest.raises(JobError, match=r"tensor_parallel_size: 2 neighbouring .* may use 1 \(0; see NEURON_RT_VIS"):
        neuron_pool([0], 2)
    with pytest.raises(JobError, match=r"2 neighbouring .* may use 2 \(0, 2;"):
        neuron_pool([0, 2], 2)


def test_a_program_that_lists_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", neuron_path(tmp_path, devices(4))["PATH"])
    found = list_devices()
    assert [device.cores for device in found] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [device.connected_to for device in found] == [(1, 3), (0, 2), (1, 3), (0, 2)]


def test_no_program_no_device_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JobError, match=r"has no NeuronCores: neuron-ls is neither on PATH nor in .*aws-neuronx-tools"):
        list_devices()
    failing = "import sys\nprint('level=fatal msg=\"failed to discover Neuron devices\"', file=sys.stderr)\nsys.exit(1)"
    put_program(tmp_path, "neuron-ls", failing)
    with pytest.raises(JobError, match=r"ended with 1 \(level=fatal .* is the driver \(aws-neuronx-dkms\) loaded"):
        list_devices()
    neuron_path(tmp_path, "[]")
    with pytest.raises(JobError, match="lists no device"):
        list_devices()
    neuron_path(tmp_path, "Segmentation fault")
    with pytest.raises(WorkerError, match=r"no JSON: 'Segmentation fault.*another version of aws-neuronx-tools"):
        list_devices()
    (tmp_path / "neuron-ls").write_bytes(b"\x7fELF no program of this machine")
    with pytest.raises(WorkerError, match="look after the Neuron driver"):
        list_devices()


JOB: dict[str, Any] = {
    "name": "j", "model": {"uri": "m"}, "input": {"uri": "i/", "text": "t"}, "output": {"uri": "o"}, "target": "neuron",
}  # fmt: skip


def test_the_doctor_shows_devices_and_who_has_cores(tmp_path: Path) -> None:
    busy = devices(2)
    busy[1]["neuron_processes"] = [{"pid": 4711, "command": "python serve.py", "neuron_runtime_version": "2.28"}]
    environment = {
        **os.environ,
        **neuron_path(tmp_path / "bin", busy),
        "LENGTHWISE_LOCK_DIR": str(tmp_path / "locks"),
        "NEURON_RT_VISIBLE_CORES": "0-2",
    }
    code = """
import subprocess, sys
from pipeline.cores import CorePool
from pipeline.leases import leased
with leased(CorePool("neuron", ((0, 1), (2, 3))), "reviews", print):
    for argv in (["doctor", "--json"], ["doctor"]):
        subprocess.run([sys.executable, "-m", "pipeline", *argv], check=True)
        print("@", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    as_json, text, _ = done.stdout.split("@\n")
    found = json.loads(as_json)
    (lease,) = found["leases"]
    assert (lease["kind"], lease["cores"], lease["job"]) == ("neuron", [0, 1], "reviews")
    assert found["neuron"]["devices"][1] == {
        "device": 1, "cores": [2, 3], "memory_bytes": 32 * GIB, "connected_to": [0],
        "processes": [{"pid": 4711, "command": "python serve.py"}],
    }  # fmt: skip
    # The lease's own variable is what the doctor's process inherited.
    assert (found["neuron"]["usable_cores"], found["neuron"]["unavailable"]) == ([0, 1], None)
    assert "device 1: cores 2, 3; 32 GiB; used by pid 4711 python serve.py" in text
    assert f"NeuronCore 0, 1: leased by job reviews, pid {lease['pid']}, for" in text


def test_which_cores_a_job_wants_is_checked_when_it_is_read() -> None:
    for fields, said in [
        ({"tensor_parallel_size": 2}, "neuron: tensor_parallel_size: 2 cores for one copy are cores: latency"),
        ({"cores": "spread"}, "neuron.cores: Input should be 'throughput' or 'latency'"),
    ]:
        with pytest.raises(JobError, match=said):
            parse_job({**JOB, "neuron": fields}, "j")
