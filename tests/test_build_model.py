"""Reading a model directory: what is told about it without torch, and what is refused, with the reason."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_models import ARCHITECTURES, MAX_LENGTH, make_model

from compile.errors import ModelError
from compile.model import read_model


@pytest.fixture
def model_dir(tmp_path: Path, tiny_model: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def change_config(model_dir: Path, **changes: Any) -> None:
    """Set fields of config.json; None removes one."""
    config = json.loads((model_dir / "config.json").read_text()) | changes
    kept = {name: value for name, value in config.items() if value is not None}
    (model_dir / "config.json").write_text(json.dumps(kept))


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_every_architecture_is_read(tmp_path: Path, architecture: str) -> None:
    model = read_model(make_model(tmp_path / "model", architecture, labels=4))
    assert model.model_type == architecture
    assert model.labels == ("label-0", "label-1", "label-2", "label-3")
    assert model.max_positions == MAX_LENGTH
    assert model.pad_token_id == (1 if architecture in {"roberta", "xlm-roberta", "mpnet"} else 0)
    assert model.uses_token_types == (architecture in {"bert", "electra"})
    assert model.problem_type == "single_label"
    assert model.vocab_size > 50


@pytest.mark.parametrize(
    ("labels", "stated", "expected"),
    [
        (1, None, "regression"),
        (2, None, "single_label"),
        (3, "multi_label_classification", "multi_label"),
        (1, "regression", "regression"),
        (2, "single_label_classification", "single_label"),
    ],
)
def test_the_problem_type_is_stated_or_follows_from_the_labels(
    tmp_path: Path, labels: int, stated: str | None, expected: str
) -> None:
    model_dir = make_model(tmp_path / "model", labels=labels)
    change_config(model_dir, problem_type=stated)
    assert read_model(model_dir).problem_type == expected


def test_labels_are_in_the_order_of_their_indices(model_dir: Path) -> None:
    names = {str(index): f"n{index}" for index in reversed(range(12))}
    change_config(model_dir, id2label=names)
    assert read_model(model_dir).labels == tuple(f"n{index}" for index in range(12))


def test_the_digest_covers_what_can_change_a_prediction_and_nothing_else(model_dir: Path, tmp_path: Path) -> None:
    before = read_model(model_dir).digest
    (model_dir / "README.md").write_text("about this model")
    moved = Path(shutil.copytree(model_dir, tmp_path / "elsewhere"))
    assert read_model(moved).digest == before
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        data = (model_dir / name).read_bytes()
        (model_dir / name).write_bytes(data + b" ")
        assert read_model(model_dir).digest != before, name
        (model_dir / name).write_bytes(data)
    assert read_model(model_dir).digest == before


def test_reading_imports_no_heavy_package(tiny_model: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from compile.model import read_model; read_model(Path(sys.argv[1]));"
        "print([name for name in ('torch', 'transformers', 'openvino', 'numpy') if name in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", program, str(tiny_model)],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert out.strip() == "[]"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": None}, "no model_type"),
        ({"architectures": ["BertModel"]}, "not a sequence classifier.*BertModel"),
        ({"architectures": None}, "not a sequence classifier"),
        ({"problem_type": "guessing"}, "'guessing' is not one of: single_label_classification"),
        ({"id2label": {"0": "a", "2": "b"}}, "gaps"),
        ({"id2label": ["a", "b"]}, "must map indices"),
        ({"vocab_size": "many"}, "vocab_size must be a positive integer"),
        ({"max_position_embeddings": 0}, "max_position_embeddings must be a positive integer"),
        ({"pad_token_id": 3}, "tokenizer's pad token is 0"),
    ],
)
def test_a_contradictory_config_is_refused(model_dir: Path, changes: dict[str, Any], message: str) -> None:
    change_config(model_dir, **changes)
    with pytest.raises(ModelError, match=message):
        read_model(model_dir)


def test_an_encoder_without_a_head_is_read_only_when_asked(model_dir: Path) -> None:
    change_config(model_dir, architectures=["BertModel"])
    assert read_model(model_dir, classifier=False).model_type == "bert"


def test_what_is_missing_is_named(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model directory"):
        read_model(tmp_path / "nowhere")
    (model_dir / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no weights; expected one of: \*\.safetensors"):
        read_model(model_dir)
    (model_dir / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not JSON"):
        read_model(model_dir)
    (model_dir / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="not a JSON object"):
        read_model(model_dir)
    (model_dir / "config.json").unlink()
    with pytest.raises(ModelError, match=r"has no config\.json"):
        read_model(model_dir)
