"""What a model directory holds, read from its JSON files alone: labels, lengths, pad token, digest of its content."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compile.errors import ModelError

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""Weight files, best first: torch and transformers prefer safetensors when both are there."""

CONTENT = (
    "config.json",
    "*.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "*.model",
)
"""Files beside the weights that can change a prediction."""

OFFSET_POSITIONS = {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet"}
"""Model types whose positions start at pad_token_id + 1, so that many embeddings hold no token."""

SEGMENT_TYPES = {"bert", "electra", "deberta-v2", "deberta", "albert", "roberta", "xlm-roberta", "xlnet", "convbert"}
"""Model types whose forward takes token_type_ids; they matter when type_vocab_size is at least 2."""

PROBLEM_TYPES = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A sequence-classification model, as its files describe it."""

    digest: str
    """sha256 (hex) over names and content of config, weights and tokenizer files."""
    model_type: str
    labels: tuple[str, ...]
    """In index order."""
    problem_type: str
    """`single_label`, `multi_label` or `regression`."""
    max_positions: int
    """Tokens a row may have, special tokens included."""
    pad_token_id: int
    vocab_size: int
    uses_token_types: bool


def read_model(model_dir: Path, *, classifier: bool = True) -> ModelInfo:
    """Read a model directory. Raises ModelError that says what is missing.

    With `classifier` (the default) the config must name a `...ForSequenceClassification` architecture.
    """
    if not model_dir.is_dir():
        raise ModelError(f"there is no model directory {model_dir}")
    config = read_json(model_dir / "config.json")
    model_type = config.get("model_type")
    if not model_type:
        raise ModelError(f"{model_dir / 'config.json'} has no model_type")
    weight_files(model_dir)
    if classifier:
        _check_classifier(model_dir, config)
    labels = _labels(model_dir, config)
    pad_token_id = _pad_token_id(model_dir, config)
    return ModelInfo(
        digest=model_digest(model_dir),
        model_type=model_type,
        labels=labels,
        problem_type=_problem_type(model_dir, config, len(labels)),
        max_positions=_max_positions(model_dir, config, pad_token_id),
        pad_token_id=pad_token_id,
        vocab_size=_positive(model_dir, config, "vocab_size"),
        uses_token_types=takes_token_types(config),
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ModelError."""
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path.parent} has no {path.name}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ModelError(f"{path} holds {type(data).__name__}, not a JSON object")
    return data


def takes_token_types(config: dict[str, Any]) -> bool:
    """Whether the model tells the first text of a pair from the second by token_type_ids."""
    default = 2 if config.get("model_type") in {"bert", "electra", "albert"} else 0
    return config.get("model_type") in SEGMENT_TYPES and int(config.get("type_vocab_size", default)) >= 2


def weight_files(model_dir: Path) -> list[Path]:
    """The files that hold the weights, sorted. Raises ModelError when there are none."""
    for pattern in WEIGHTS:
        found = sorted(path for path in model_dir.glob(pattern) if path.is_file())
        if found:
            return found
    raise ModelError(f"{model_dir} has no weights; expected one of: {', '.join(WEIGHTS)}")


def model_digest(model_dir: Path) -> str:
    """sha256 (hex) over the sorted names and contents of everything that can change a prediction."""
    paths = {path for pattern in CONTENT for path in model_dir.glob(pattern) if path.is_file()}
    paths.update(weight_files(model_dir))
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda each: each.name):
        digest.update(f"{path.name}\0{file_digest(path)}\n".encode())
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """sha256 (hex) of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_classifier(model_dir: Path, config: dict[str, Any]) -> None:
    architectures = config.get("architectures") or []
    if not any(str(name).endswith("ForSequenceClassification") for name in architectures):
        raise ModelError(
            f"{model_dir} is not a sequence classifier: its config names {', '.join(map(str, architectures)) or 'no'} "
            "architecture, and one that ends in ForSequenceClassification is needed"
        )


def _labels(model_dir: Path, config: dict[str, Any]) -> tuple[str, ...]:
    names = config.get("id2label")
    if not names:
        return tuple(f"LABEL_{index}" for index in range(int(config.get("num_labels", 2))))
    try:
        by_index = {int(index): str(name) for index, name in names.items()}
    except (ValueError, AttributeError):
        raise ModelError(f"{model_dir / 'config.json'}: id2label must map indices to names, not {names!r}") from None
    if sorted(by_index) != list(range(len(by_index))):
        raise ModelError(f"{model_dir / 'config.json'}: id2label has gaps: indices {sorted(by_index)}")
    return tuple(by_index[index] for index in range(len(by_index)))


def _problem_type(model_dir: Path, config: dict[str, Any], labels: int) -> str:
    stated = config.get("problem_type")
    if stated is None:
        return "regression" if labels == 1 else "single_label"
    if stated not in PROBLEM_TYPES:
        known = ", ".join(PROBLEM_TYPES)
        raise ModelError(f"{model_dir / 'config.json'}: problem_type {stated!r} is not one of: {known}")
    return PROBLEM_TYPES[stated]


def _pad_token_id(model_dir: Path, config: dict[str, Any]) -> int:
    """The config's pad id; the tokenizer's must agree, since a wrong one gives pads the meaning of a word."""
    stated = config.get("pad_token_id")
    from_tokenizer = _tokenizer_pad_id(model_dir)
    if stated is not None and from_tokenizer is not None and int(stated) != from_tokenizer:
        raise ModelError(
            f"{model_dir}: config.json says pad_token_id {stated}, but the tokenizer's pad token is {from_tokenizer}"
        )
    pad = stated if stated is not None else from_tokenizer
    if pad is None:
        # Configurations are saved without values that equal the class's default, which is 0 or 1 in every encoder.
        pad = 1 if config.get("model_type") in OFFSET_POSITIONS else 0
    if not 0 <= int(pad) < _positive(model_dir, config, "vocab_size"):
        raise ModelError(f"{model_dir / 'config.json'}: pad_token_id {pad} is outside the vocabulary")
    return int(pad)


def _tokenizer_pad_id(model_dir: Path) -> int | None:
    if not ((model_dir / "tokenizer.json").is_file() and (model_dir / "tokenizer_config.json").is_file()):
        return None
    pad = read_json(model_dir / "tokenizer_config.json").get("pad_token")
    content = pad.get("content") if isinstance(pad, dict) else pad
    added = read_json(model_dir / "tokenizer.json").get("added_tokens") or []
    return next((int(token["id"]) for token in added if token.get("content") == content), None)


def _max_positions(model_dir: Path, config: dict[str, Any], pad_token_id: int) -> int:
    # GPT-2's name for it is n_positions.
    positions = _positive(model_dir, config, "n_positions" if "n_positions" in config else "max_position_embeddings")
    if config.get("model_type") in OFFSET_POSITIONS:
        return positions - pad_token_id - 1
    return positions


def _positive(model_dir: Path, config: dict[str, Any], field: str) -> int:
    value = config.get(field)
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"{model_dir / 'config.json'}: {field} must be a positive integer, not {value!r}")
    return value
