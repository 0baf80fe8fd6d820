"""What the end of a step's process means to its parent: the child's own error again, or how it died."""

from __future__ import annotations

from compile.errors import ArtifactError
from pipeline.errors import LengthwiseError, WorkerError
from pipeline.processes import ERROR_PREFIX, StepProcess

_ENDED_BY_ITSELF = {1, 2, 3, 4, 5, 7, 130, 143}
"""Exit codes of a process that could still say what was wrong; 6 is a lost device, others are a runtime's own."""


def died(code: int) -> bool:
    """Whether a process was killed, or lost its device, by what it was executing."""
    return code != 0 and code not in _ENDED_BY_ITSELF


def last_words(code: int, process: StepProcess) -> str:
    """What it said about its end, else the last lines that it said at all."""
    told = [line.removeprefix(ERROR_PREFIX) for line in process.errors if line.startswith(ERROR_PREFIX)]
    return "\n".join(told) or "\n".join(list(process.errors)[-5:]) or f"exit code {code}"


def child_error(step: str, code: int, process: StepProcess, detail: str = "") -> LengthwiseError | ArtifactError:
    """The child's own error, as the type that its exit code stands for."""
    message = last_words(code, process)
    if code == 4:
        return ArtifactError(message)
    for kind in LengthwiseError.__subclasses__():
        if kind.exit_code == code:
            return kind(message)
    ended = f"was ended by signal {-code} (9 is often: out of memory)" if code < 0 else f"failed with exit code {code}"
    return WorkerError(f"the {step} step {ended}; {detail}what is finished is kept, run again.\n{message}")
