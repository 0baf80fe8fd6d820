"""Which cores a copy of a job's model may run on: one CPU core, one NeuronCore, or neighbouring NeuronCores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pipeline.core_sharing import Group
from pipeline.errors import JobError
from pipeline.neuron_devices import VISIBLE, NeuronDevice, list_devices, usable_cores

if TYPE_CHECKING:
    from pipeline.job import Job

_LIBRARIES = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "RAYON")
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in _LIBRARIES}
"""Environment of a worker: a second thread on a busy core makes both an order of magnitude slower."""

Kind = Literal["cpu", "neuron"]
KINDS: tuple[Kind, ...] = ("cpu", "neuron")


@dataclass(frozen=True, slots=True)
class CorePool:
    """The cores that a job's workers share with those of other jobs on this host."""

    kind: Kind
    groups: tuple[Group, ...]
    """What one copy takes: as many copies fit side by side."""

    @property
    def name(self) -> str:
        """For people."""
        cores = sum(map(len, self.groups))
        return f"{cores} cores" if self.kind == "cpu" else f"{cores} NeuronCores"


def available_cores() -> list[int]:
    """CPU cores that this process may run on."""
    return sorted(os.sched_getaffinity(0))


def core_pool(job: Job) -> CorePool:
    """What the job's workers run on here. Raises JobError when this host lacks the NeuronCores, WorkerError."""
    return pool_of(on_cpu=not on_neuron(job), wanted=_wanted(job))


def pool_of(*, on_cpu: bool, wanted: int = 1) -> CorePool:
    """Single CPU cores, or groups of `wanted` NeuronCores. Raises as `core_pool`."""
    if on_cpu:
        return CorePool("cpu", tuple((core,) for core in available_cores()))
    return _neuron_pool_of(list_devices(), wanted)


def on_neuron(job: Job) -> bool:
    """Whether its copies run on NeuronCores."""
    from pipeline.workloads import load_workload

    return not load_workload(job.task).target(job).on_cpu


def copies_here(job: Job) -> int | None:
    """How many copies of the job's model fit side by side; None where a job for NeuronCores finds no device.

    Raises JobError when the host has NeuronCores, but the environment or the job wants others.
    """
    if not on_neuron(job):
        return len(available_cores())
    try:
        devices = list_devices()
    except JobError:
        return None
    return len(_neuron_pool_of(devices, _wanted(job)).groups)


def _wanted(job: Job) -> int:
    return job.neuron.cores_per_copy if job.neuron else 1


def _neuron_pool_of(devices: Sequence[NeuronDevice], wanted: int) -> CorePool:
    return neuron_pool(usable_cores([core for device in devices for core in device.cores]), wanted)


def neuron_pool(usable: Sequence[int], wanted: int) -> CorePool:
    """Groups of `wanted` neighbours each, from the first core on. Raises JobError when not one group fits."""
    groups, run = list[Group](), list[int]()
    for core in sorted(usable):
        run = [*run, core] if run and core == run[-1] + 1 else [core]
        if len(run) == wanted:
            groups.append(tuple(run))
            run = []
    if not groups:
        raise JobError(
            f"neuron.tensor_parallel_size: {wanted} neighbouring NeuronCores are wanted for one copy, but this process "
            f"may use {len(usable)} ({', '.join(map(str, usable))}; see {VISIBLE}); lower it, or use a larger host"
        )
    return CorePool("neuron", tuple(groups))
