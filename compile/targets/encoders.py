"""The PyTorch module behind every target: a sequence classifier that maps three integer tensors to logits."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compile.errors import ModelError
from compile.lean_imports import transformers_package
from compile.model import read_json, takes_token_types
from compile.shapes import Shape

MAX_BATCH = 128
SLOT_TOKENS = (512, 1024, 2048)
"""Slot tokens per batch between which a CPU core is within some per cent of its best speed."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep converters' deprecation and tracing warnings from the user: parity judges what they made."""
    logging = transformers_package().utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)


def input_names(model_dir: Path) -> tuple[str, ...]:
    """Names of the graph's inputs, in order: `token_type_ids` only for models that use them."""
    names = ("input_ids", "attention_mask")
    return (*names, "token_type_ids") if takes_token_types(read_json(model_dir / "config.json")) else names


def cpu_candidates(max_length: int) -> list[Shape]:
    """Shapes worth considering on a CPU core: lengths in steps, with the batches of about SLOT_TOKENS each.

    A length that is no multiple of 8 costs no more per token (measured), so steps are as fine as padding is worth it.
    """
    lengths = sorted({*range(4, min(128, max_length), 4), *range(128, max_length, 8), max_length})
    batches = {length: {max(1, min(MAX_BATCH, round(slots / length))) for slots in SLOT_TOKENS} for length in lengths}
    return [Shape(length=length, batch=batch) for length in lengths for batch in sorted(batches[length])]


def load_encoder(model_dir: Path, precision: str = "fp32") -> Any:
    """A torch.nn.Module in eval mode, on one thread: forward(input_ids, attention_mask[, token_type_ids]) -> logits.

    Inputs are int64 (batch, length), logits (batch, labels). Raises ModelError as `load_classifier` does.
    """
    return _logits_module(load_classifier(model_dir, precision), input_names(model_dir))


def load_classifier(model_dir: Path, precision: str = "fp32") -> Any:
    """The transformers model in eval mode, on one thread.

    Raises ModelError when weights are missing: transformers would fill them with random numbers and only warn.
    """
    import safetensors
    import torch

    transformers = transformers_package()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()  # it advises about training heads, which is not our business
    config = transformers.AutoConfig.from_pretrained(model_dir)
    if hasattr(config, "reference_compile"):
        config.reference_compile = False  # ModernBERT would call torch.compile at its first forward
    try:
        with quiet():
            model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
                model_dir,
                config=config,
                dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[precision],
                output_loading_info=True,
                local_files_only=True,
            )
    except (OSError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise ModelError(f"{model_dir} cannot be loaded as a sequence classifier: {error}") from error
    if report["missing_keys"]:
        raise ModelError(f"{model_dir} has no weights for: {', '.join(sorted(report['missing_keys'])[:8])}")
    return model.eval()


def example_inputs(names: tuple[str, ...], batch: int = 2, length: int = 16) -> dict[str, Any]:
    """Tensors to trace with: every value differs by position, so that no folding depends on equal values."""
    import torch

    ids = torch.arange(batch * length).reshape(batch, length) % 5 + 5
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[1, length // 2 :] = 0
    values = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return {name: values[name] for name in names}


def _logits_module(model: Any, names: tuple[str, ...]) -> Any:
    import torch

    class Logits(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.names = names

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
            inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
            if "token_type_ids" in self.names:
                inputs["token_type_ids"] = token_type_ids
            return self.model(**inputs).logits

    return Logits().eval()
