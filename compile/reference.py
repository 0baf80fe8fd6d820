"""What a row's logits should be: the fp32 PyTorch model, one row at a time, unpadded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compile.batches import TokenRow, batch_rows
from compile.shapes import Shape
from compile.targets.encoders import input_names, load_encoder
from compile.targets.torch import TorchExecutable


class Reference:
    """Logits by row, each computed once. The model is loaded at the first row."""

    def __init__(self, model_dir: Path, pad_token_id: int) -> None:
        self._model_dir = model_dir
        self._pad_token_id = pad_token_id
        self._executable: TorchExecutable | None = None
        self._known: dict[tuple[bytes, int], NDArray[np.float32]] = {}

    def logits(self, row: TokenRow) -> NDArray[np.float32]:
        """Float32 (labels,). Raises ModelError when the model does not load, DeviceError when it cannot run the row."""
        key = (row.token_ids.tobytes(), row.segment_b)
        if key not in self._known:
            self._known[key] = self._run(row)
        return self._known[key]

    def _run(self, row: TokenRow) -> NDArray[np.float32]:
        if self._executable is None:
            module = load_encoder(self._model_dir)
            self._executable = TorchExecutable(Shape(1, 1), module, input_names(self._model_dir))
        self._executable.shape = Shape(length=len(row), batch=1)
        logits = self._executable.run(batch_rows([row], self._executable.shape, self._pad_token_id))
        return logits.reshape(-1)
