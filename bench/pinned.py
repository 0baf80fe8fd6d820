"""Runs a command on given cores and counts its CPU seconds, those of its children included."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cores:
    """Some cores, and a folder for what processes on them keep: two commands on different cores share nothing."""

    folder: Path
    numbers: tuple[int, ...]

    def run(self, command: Sequence[str]) -> tuple[float, str]:
        """User and system seconds, and the last line said. Raises RuntimeError when the command fails."""
        names = ",".join(map(str, self.numbers))
        environment = {
            **os.environ,
            "LENGTHWISE_CACHE": str(self.folder / "cache"),
            "LENGTHWISE_LOCK_DIR": str(self.folder / "locks"),
        }
        log = self.folder / f"cores-{names}.log"
        with log.open("wb") as output:
            child = subprocess.Popen(["taskset", "-c", names, *command], env=environment, stdout=output, stderr=output)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        said = log.read_text().strip()
        if child.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}:\n{said[-2000:]}")
        return usage.ru_utime + usage.ru_stime, said.rpartition("\n")[2]
