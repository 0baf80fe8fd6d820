"""64 processes over 8 simulated NeuronCores, killed with -9 at random: never two holders of a core, never a leaked one.

The witness knows nothing of locks: every process has a connection to it, over which it says which cores it has, and
asks before it gives them back. A killed process's connection ends; the kernel closes it before the lease's files.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.core_sharing import Group
from pipeline.cores import CorePool
from pipeline.leases import leased, leases

CORES = 8
SINGLES = tuple((core,) for core in range(CORES))
PAIRS = tuple((core, core + 1) for core in range(0, CORES, 2))
NURSERY = """
import json, os, socket, sys
from pipeline.cores import CorePool
from pipeline.leases import leased

def work(path, number, job, groups):
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)  # before any file of a lease is open: it is closed first
    link.sendall(json.dumps([number, os.getpid()]).encode() + b"\\n")
    answers = link.makefile("r")
    assert answers.readline() == "known\\n"
    with leased(CorePool("neuron", tuple(map(tuple, groups))), job, lambda line: None, turn_s=0) as lease:
        link.sendall(json.dumps(lease.cores).encode() + b"\\n")
        assert answers.readline() == "give back\\n"

path, workers = sys.argv[1], json.loads(sys.argv[2])
children = []
for number, (job, groups) in enumerate(workers):
    child = os.fork()
    if not child:
        work(path, number, job, groups)
        os._exit(0)
    children.append(child)
ends = [os.waitpid(child, 0)[1] for child in children]
print(json.dumps([os.waitstatus_to_exitcode(end) for end in ends]))
"""
"""Forks all workers from one process that has imported what they need; says in the end how each ended."""


@dataclass
class Witness:
    """Who has said to have which cores."""

    rng: random.Random
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    pids: dict[socket.socket, int] = field(default_factory=dict)
    has: dict[socket.socket, list[int]] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)
    leases: int = 0
    ended: int = 0

    def hears(self, link: socket.socket) -> None:
        """One message or the end of a connection."""
        try:
            said = link.recv(4096)
        except ConnectionResetError:  # killed with an answer unread
            said = b""
        if not said:
            self.forget(link)
        elif link not in self.pids:
            self.pids[link] = json.loads(said)[1]
            link.sendall(b"known\n")
        else:
            cores = json.loads(said)
            for other, held in list(self.has.items()):
                if set(held) & set(cores):
                    assert dead(other), f"{self.pids[link]} has {cores}, and {self.pids[other]} has {held}"
                    self.forget(other)
            self.has[link] = cores
            self.leases += 1

    def forget(self, link: socket.socket) -> None:
        self.selector.unregister(link)
        self.has.pop(link, None)
        self.pids.pop(link, None)
        link.close()
        self.ended += 1

    def strike(self, stalled: bool) -> None:
        """Somebody is killed, or a holder is told to give back: mostly when all cores are taken, or nothing moves."""
        waiting = [link for link in self.pids if link not in self.has and self.pids[link] not in self.killed]
        if waiting and self.rng.random() < 0.06:
            self.kill(self.rng.choice(waiting))
        able = [link for link in self.has if self.pids[link] not in self.killed]
        busy = sum(map(len, self.has.values()))
        if able and (stalled or busy >= CORES - 1 or self.rng.random() < 0.1):
            link = self.rng.choice(able)
            if self.rng.random() < 0.5:
                self.kill(link)
            else:
                del self.has[link]
                link.sendall(b"give back\n")

    def kill(self, link: socket.socket) -> None:
        self.killed.add(self.pids[link])
        os.kill(self.pids[link], signal.SIGKILL)


def dead(link: socket.socket) -> bool:
    """Whether the connection has ended: the kernel ended it before anything that its process held was free."""
    try:
        return link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@contextlib.contextmanager
def nursery(workers: list[tuple[str, tuple[Group, ...]]], path: str) -> Iterator[subprocess.Popen[str]]:
    """The process that all workers are children of; none outlives the body."""
    argv = [sys.executable, "-c", NURSERY, path, json.dumps(workers)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def played(rng: random.Random, workers: list[tuple[str, tuple[Group, ...]]], folder: Path) -> tuple[Witness, list[int]]:
    """All workers to their ends: the witness, and their exit codes."""
    witness, quiet = Witness(rng), 0
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(str(folder / "s"))
        server.listen(len(workers))
        witness.selector.register(server, selectors.EVENT_READ)
        parent = stack.enter_context(nursery(workers, str(folder / "s")))
        while witness.ended < len(workers):
            ready = witness.selector.select(0.5)
            quiet = 0 if ready else quiet + 1
            assert quiet < 100, f"nothing moves: {witness.has}, {leases('neuron')}"
            for key, _ in ready:
                link = key.fileobj
                assert isinstance(link, socket.socket)
                if link is server:
                    witness.selector.register(server.accept()[0], selectors.EVENT_READ)
                elif link.fileno() >= 0:  # else forgotten since
                    witness.hears(link)
            witness.strike(stalled=not ready)
        return witness, json.loads(parent.communicate(timeout=240)[0])


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_64_processes_and_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setenv("LENGTHWISE_LOCK_DIR", str(tmp_path / "locks"))
    rng = random.Random(seed)
    workers = [(f"job{rng.randrange(4)}", SINGLES if rng.random() < 0.75 else PAIRS) for _ in range(64)]
    witness, ends = played(rng, workers, tmp_path)
    assert ends.count(-9) == len(witness.killed) >= 15, "they were killed while they had cores or waited"
    assert ends.count(0) == 64 - len(witness.killed) >= 15, "all others were served"
    assert witness.leases >= 30
    assert leases("neuron") == ([], []), "no lease, no ticket of a dead process"
    with contextlib.ExitStack() as stack:
        every = [stack.enter_context(leased(CorePool("neuron", SINGLES), "a", refuse)) for _ in range(CORES)]
    assert sorted(lease.core for lease in every) == list(range(CORES)), "all are free at once"


def refuse(line: str) -> None:
    raise AssertionError(line)
