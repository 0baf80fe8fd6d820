"""Runs a command on given cores and counts its CPU seconds, those of its children included."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cores:
    """Some cores, and a folder for what processes on them keep."""

    folder: Path
    numbers: tuple[int, ...]

    def pinning(self, command: Sequence[str]) -> list[str]:
        """The command as it runs on these cores alone."""
        return ["taskset", "-c", ",".join(map(str, self.numbers)), *command]

    def run(self, command: Sequence[str]) -> tuple[float, str]:
        """User and system seconds, and the last line said. Raises RuntimeError when the command fails."""
        environment = {
            **os.environ,
            "LENGTHWISE_CACHE": str(self.folder / "cache"),
            "LENGTHWISE_LOCK_DIR": str(self.folder / "locks"),
        }
        with tempfile.TemporaryFile(dir=self.folder) as output:
            child = subprocess.Popen(self.pinning(command), env=environment, stdout=output, stderr=output)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            said = output.read().decode().strip()
        if child.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}:\n{said[-2000:]}")
        return usage.ru_utime + usage.ru_stime, said.rpartition("\n")[2]
