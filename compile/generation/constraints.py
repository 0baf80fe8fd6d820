"""What a text must look like: a JSON schema or a regular expression, as a mask of allowed tokens per step."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Matcher(Protocol):
    """Follows one text."""

    def allowed(self) -> NDArray[np.bool_]:
        """Tokens that may come next, bool (vocab,), ending tokens where the text may end; none when it is stuck."""

    def take(self, token: int) -> None:
        """The token that was chosen."""


class Constraint(Protocol):
    """One rule for all texts of a job."""

    def matcher(self) -> Matcher:
        """A fresh one for a new text."""
