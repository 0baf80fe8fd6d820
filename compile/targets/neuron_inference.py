"""What a SageMaker endpoint runs: `lengthwise package` puts this file into the archive, as code/inference.py.

The Hugging Face inference toolkit imports it, calls `model_fn` once per worker process and `predict_fn` per request. It
stands alone: a container has transformers and optimum-neuron, and nothing of Lengthwise.

Request (JSON): {"inputs": TEXTS, "parameters": {"top_k": 1, "truncation": true}}, where TEXTS is one text, or a list of
any length, and a text is a string or, for pairs, {"text": "...", "text_pair": "..."}. `parameters` may be left out.
Answer: one object per text, {"label": "...", "score": 0.98, "truncated_tokens": 0}, in a list; a list of such lists
where top_k is given (a number, or null for all labels). A model with one output answers its value as the score.
"""

from __future__ import annotations

import os

# Before any runtime is imported: the toolkit starts one process per core, and each would take all cores.
os.environ["NEURON_RT_NUM_CORES"] = "1"

from typing import Any

import numpy as np
from numpy.typing import NDArray

PARAMETERS = ("top_k", "truncation")
_ONE = object()
"""No top_k was given: the best label alone, and no list around it."""


class Classifier:
    """One compiled graph of static shape (batch, length) with its tokenizer."""

    def __init__(self, model_dir: str) -> None:
        from optimum.neuron import NeuronModelForSequenceClassification
        from optimum.utils import logging
        from transformers import AutoTokenizer

        logging.set_verbosity_error()
        self.tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
        # Cutting is done here and told in the answer; the limit of the tokenizer would only be warned of.
        self.tokenizer.model_max_length = 1 << 30
        self.model = NeuronModelForSequenceClassification.from_pretrained(model_dir, local_files_only=True)
        self.config = self.model.config
        self.names: tuple[str, ...] = tuple(self.model.input_static_shapes)
        self.batch, self.length = (int(each) for each in self.model.input_static_shapes["input_ids"])

    def tokens(self, texts: list[str], pairs: list[str] | None, truncation: bool) -> tuple[list[Any], list[int]]:
        """Of each text {input name: token values, unpadded}, and how many of its tokens were cut."""
        whole = self.tokenizer(texts, pairs)
        lengths = [len(ids) for ids in whole["input_ids"]]
        cut = [max(0, length - self.length) for length in lengths]
        if any(cut) and not truncation:
            row = next(index for index, tokens in enumerate(cut) if tokens)
            raise ValueError(
                f"inputs[{row}] has {lengths[row]} tokens, and this endpoint takes {self.length}; shorten it, or leave "
                "truncation out of the parameters"
            )
        if any(cut):
            whole = self.tokenizer(texts, pairs, truncation=True, max_length=self.length)
        names = [name for name in self.names if name in whole]
        return [{name: whole[name][row] for name in names} for row in range(len(texts))], cut

    def padded(self, rows: list[Any]) -> dict[str, NDArray[np.int64]]:
        """Inputs int64 (batch, length) of at most `batch` rows, padded on the right and with unread rows."""
        inputs = {name: np.zeros((self.batch, self.length), np.int64) for name in self.names}
        inputs["input_ids"][:] = self.config.pad_token_id or 0
        inputs["attention_mask"][len(rows) :, 0] = 1  # a softmax over nothing is NaN in some runtimes
        for index, row in enumerate(rows):
            for name, values in row.items():
                inputs[name][index, : len(values)] = values
        return inputs

    def logits(self, rows: list[Any]) -> NDArray[np.float32]:
        """Float32 (rows, labels), in as many executions of the static batch as they need."""
        import torch

        found = []
        for start in range(0, len(rows), self.batch):
            part = rows[start : start + self.batch]
            inputs = {name: torch.from_numpy(values) for name, values in self.padded(part).items()}
            with torch.inference_mode():
                found.append(self.model(**inputs).logits[: len(part)].float().numpy())
        return np.concatenate(found)

    def scores(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scores (rows, labels): softmax, or sigmoid of a multi-label model; a regression's value as it is."""
        if self.config.problem_type == "regression" or (self.config.problem_type is None and logits.shape[1] == 1):
            return logits
        wide = logits.astype(np.float64)
        if self.config.problem_type == "multi_label_classification":
            return np.exp(-np.logaddexp(0, -wide)).astype(np.float32)
        shifted = np.exp(wide - wide.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True), np.float32)


def model_fn(model_dir: str) -> Classifier:
    """Load the artifact onto the one core of this process."""
    return Classifier(model_dir)


def predict_fn(data: Any, model: Classifier) -> list[Any]:
    """Answer a request, as the module says. Raises ValueError (HTTP 400) with what is wrong in it."""
    texts, pairs = _texts(data)
    parameters = data.get("parameters") or {}
    unknown = [name for name in parameters if name not in PARAMETERS]
    if unknown:
        raise ValueError(f"unknown parameters: {', '.join(unknown)}; there are: {', '.join(PARAMETERS)}")
    top_k = parameters.get("top_k", _ONE)
    if not (top_k is _ONE or top_k is None or (type(top_k) is int and top_k > 0)):
        raise ValueError(f"top_k must be a positive number, or null for all labels, not {top_k!r}")
    if not texts:
        return []
    rows, cut = model.tokens(texts, pairs, bool(parameters.get("truncation", True)))
    empty = [index for index, row in enumerate(rows) if not row["input_ids"]]
    if empty:
        raise ValueError(f"inputs[{empty[0]}] has no tokens")
    scores = model.scores(model.logits(rows))
    broken = np.flatnonzero(~np.isfinite(scores).all(axis=1))
    if len(broken):
        raise ValueError(f"inputs[{broken[0]}]: the model answered NaN or infinity")
    return [_answer(model, *each, top_k) for each in zip(scores, cut, strict=True)]


def _answer(model: Classifier, scores: NDArray[np.float32], cut: int, top_k: Any) -> Any:
    names = model.config.id2label
    order = np.argsort(-scores, kind="stable")[: 1 if top_k is _ONE else top_k]
    found = [{"label": names[int(each)], "score": float(scores[each]), "truncated_tokens": cut} for each in order]
    return found[0] if top_k is _ONE else found


def _texts(data: Any) -> tuple[list[str], list[str] | None]:
    """Texts and, of pairs, their second texts."""
    if not isinstance(data, dict) or "inputs" not in data:
        raise ValueError('the request must be a JSON object with a field "inputs": a text or a list of texts')
    inputs = data["inputs"]
    inputs = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    rows = [each if isinstance(each, dict) else {"text": each} for each in inputs]
    for index, row in enumerate(rows):
        if not all(isinstance(row.get(name, ""), str) for name in ("text", "text_pair")) or "text" not in row:
            raise ValueError(f'inputs[{index}] must be a text, or {{"text": ..., "text_pair": ...}}')
    pairs = [row["text_pair"] for row in rows if "text_pair" in row]
    if pairs and len(pairs) != len(rows):
        raise ValueError("inputs has pairs and single texts; send them in requests of their own")
    return [row["text"] for row in rows], pairs or None
