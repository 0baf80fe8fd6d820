"""How a worker starts anew: the same process id, nothing loaded, with its cores or at the end of the queue for some.

A NeuronCore stays with a process that has used it until that ends or its devices are closed, whatever it unloads. So
a worker starts anew to lend its cores to a child, and to give them back to others between two shards.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Literal, NoReturn

from pipeline.leases import KEPT_VARIABLE, Lease

Anew = Literal["with its cores", "in the queue"]
DONE_VARIABLE = "LENGTHWISE_DONE"


def start_anew(lease: Lease | None, done: dict[str, int]) -> NoReturn:
    """Replace this process's program by itself; `lease` goes with it, all other files are closed.

    `done` is what the worker did so far, which `done_before` gives to its next life. Parent, process group, output and
    environment stay; the body of the lease must have ended, so that the environment is the one before it.
    """
    kept = lease.descriptors if lease is not None else ()
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # the listing's own file
                os.set_inheritable(int(name), int(name) in kept)
    sys.stdout.flush()
    sys.stderr.flush()
    environment = {**os.environ, DONE_VARIABLE: json.dumps(done)}
    if lease is not None:
        environment[KEPT_VARIABLE] = lease.to_json()
    os.execve(sys.executable, sys.orig_argv, environment)  # noqa: S606 - our own command line


def done_before() -> dict[str, int]:
    """What this worker did before it started anew; its variable is not passed on."""
    done: dict[str, int] = json.loads(os.environ.pop(DONE_VARIABLE, "{}"))
    return done
