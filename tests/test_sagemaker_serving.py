"""An archive of `lengthwise package`, served over HTTP by AWS's model server and the real Hugging Face toolkit.

Under it is the double of the Neuron SDK: the answers are right or wrong, their milliseconds say nothing of a device.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifact_tools import build, open_store
from neuron_tools import events, exports_in_process, neuron_double
from numpy.typing import NDArray
from sagemaker_tools import post, serving
from tiny_models import make_model

from bench.serving_load import Load, http_sender, measure
from compile.artifacts import ArtifactStore, Manifest
from compile.batches import TokenRow, batch_rows
from compile.model import read_model
from compile.reference import Reference
from compile.shapes import Shape
from compile.targets import load_target
from pipeline.objects import Objects
from pipeline.packaging import package
from pipeline.sagemaker_requests import Deployment

SHAPE = Shape(length=16, batch=4)
SENTENCE = "a good movie and a bad movie how are you today the quick brown fox jumps over the lazy dog"
WORDS = SENTENCE.split()
TEXTS = [" ".join(WORDS[start : start + 1 + start % 9]) for start in range(11)]
LONG = "the quick brown fox jumps over the lazy dog " * 3
CONTAINER = Deployment("x", "s3://b/a.tar.gz", "", "arn", "image", "ml.inf2.xlarge", 1, 1).model()["PrimaryContainer"]


@dataclass(frozen=True)
class Served:
    url: str
    model_dir: Path
    store: ArtifactStore
    manifest: Manifest
    log: Path
    """What the double was asked for."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    model_dir = make_model(folder / "model")
    store = open_store(folder)
    with neuron_double(), exports_in_process():
        (manifest,) = build(store, model_dir, [SHAPE], target="neuron")
    archive = folder / "model.tar.gz"
    package(store, manifest, Objects(), str(archive))
    (folder / "ml").mkdir()
    with serving(archive, folder / "ml", CONTAINER["Environment"], log=folder / "double.jsonl") as url:
        assert post(url, b'{"inputs": "warm"}')[0] == 200, (folder / "ml/server.log").read_text()[-3000:]
        yield Served(url, model_dir, store, manifest, folder / "double.jsonl")


def ask(served: Served, request: Any) -> Any:
    status, body = post(served.url, json.dumps(request).encode())
    assert status == 200, body
    return json.loads(body)


def scores(answers: list[list[dict[str, Any]]], labels: tuple[str, ...]) -> NDArray[np.float64]:
    """(rows, labels), from answers with all labels, best first."""
    for answer in answers:
        assert [each["score"] for each in answer] == sorted((each["score"] for each in answer), reverse=True)
    found = [{each["label"]: each["score"] for each in answer} for answer in answers]
    return np.array([[row[label] for label in labels] for row in found])


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    raised = np.exp(logits.astype(np.float64))
    return raised / raised.sum(axis=1, keepdims=True)


def token_rows(served: Served, texts: list[str]) -> list[TokenRow]:
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(served.model_dir / "tokenizer.json"))
    encoder.no_padding()
    encoder.no_truncation()
    return [TokenRow(np.array(encoder.encode(text).ids, np.int64)) for text in texts]


def test_answers_are_those_of_the_artifact_and_near_fp32_torch(served: Served) -> None:
    """Eleven texts are two full batches of four and a partial one."""
    model = read_model(served.model_dir)
    found = scores(ask(served, {"inputs": TEXTS, "parameters": {"top_k": None}}), model.labels)
    rows = token_rows(served, TEXTS)
    with neuron_double():
        executable = served.store.load(served.manifest.spec, load_target("neuron"))
        batches = [batch_rows(rows[start : start + 4], SHAPE, model.pad_token_id) for start in (0, 4, 8)]
        direct = np.concatenate([executable.run(batch) for batch in batches])[: len(rows)]
    np.testing.assert_allclose(found, softmax(direct), atol=1e-6)
    reference = Reference(served.model_dir, model.pad_token_id)
    np.testing.assert_allclose(found, softmax(np.stack([reference.logits(row) for row in rows])), atol=1e-5)
    assert np.ptp(found, axis=0).max() > 0.05  # the texts differ, so an answer in the wrong place would show


def test_one_text_answers_as_transformers_pipeline_does(served: Served) -> None:
    """The shape of the answers is the pipeline's, with truncated_tokens added."""
    from transformers import pipeline

    plain = pipeline("text-classification", str(served.model_dir), device="cpu")
    for request, expected in [
        (TEXTS[5], plain(TEXTS[5])),
        (TEXTS[:3], plain(TEXTS[:3])),
        (TEXTS[:2], plain(TEXTS[:2], top_k=2)),
    ]:
        top_k = {"parameters": {"top_k": 2}} if isinstance(expected[0], list) else {}
        answer = ask(served, {"inputs": request, **top_k})
        flat = [each for row in answer for each in (row if isinstance(row, list) else [row])]
        wanted = [each for row in expected for each in (row if isinstance(row, list) else [row])]
        assert [type(each) for each in answer] == [type(each) for each in expected]
        assert [each["label"] for each in flat] == [each["label"] for each in wanted]
        assert [each["score"] for each in flat] == pytest.approx([each["score"] for each in wanted], abs=1e-5)
        assert {each["truncated_tokens"] for each in flat} == {0}


def test_truncation_is_told_or_refused(served: Served) -> None:
    (row,) = token_rows(served, [LONG])
    (answer,) = ask(served, {"inputs": LONG})
    assert answer["truncated_tokens"] == len(row) - SHAPE.length > 0
    kept = TokenRow(np.append(row.token_ids[: SHAPE.length - 1], row.token_ids[-1]))  # the last one is [SEP]
    model = read_model(served.model_dir)
    expected = softmax(Reference(served.model_dir, model.pad_token_id).logits(kept)[None])[0]
    assert answer["score"] == pytest.approx(expected.max(), abs=1e-5)
    assert answer["label"] == model.labels[int(expected.argmax())]
    status, body = post(served.url, json.dumps({"inputs": ["x", LONG], "parameters": {"truncation": False}}).encode())
    assert status == 400
    assert f"inputs[1] has {len(row)} tokens, and this endpoint takes 16" in json.loads(body)["message"]


def test_pairs_have_their_second_text_told_apart(served: Served) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    (answer,) = ask(served, {"inputs": [{"text": "a good movie", "text_pair": "a bad movie"}]})
    tokenizer = AutoTokenizer.from_pretrained(served.model_dir)
    model = AutoModelForSequenceClassification.from_pretrained(served.model_dir).eval()
    with torch.inference_mode():
        logits = model(**tokenizer("a good movie", "a bad movie", return_tensors="pt")).logits
    assert answer["score"] == pytest.approx(float(logits.softmax(-1).max()), abs=1e-5)


@pytest.mark.parametrize(
    ("request_body", "message"),
    [
        (b"[1]", "a JSON object with a field"),
        (b'{"inputs": ["x", 7]}', "inputs[1] must be a text"),
        (b'{"inputs": "x", "parameters": {"topk": 1}}', "unknown parameters: topk"),
        (b'{"inputs": "x", "parameters": {"top_k": 0}}', "top_k must be a positive number"),
        (b'{"inputs": ["x", {"text": "x", "text_pair": "y"}]}', "pairs and single texts"),
        (b"{", "Expecting property name"),
    ],
)
def test_a_request_that_is_wrong_says_why(served: Served, request_body: bytes, message: str) -> None:
    status, body = post(served.url, request_body)
    assert (status, message in json.loads(body)["message"]) == (400, True), body


def test_csv_and_no_texts(served: Served) -> None:
    status, body = post(served.url, b"inputs\na good movie\na bad movie\n", "text/csv")
    assert (status, len(json.loads(body))) == (200, 2)
    assert ask(served, {"inputs": []}) == []


def test_a_worker_has_one_core_and_only_the_static_shape_runs(served: Served) -> None:
    ask(served, {"inputs": TEXTS})
    assert [event["cores"] for event in events(served.log, "load")] == [[0]]
    assert {event["shape"] for event in events(served.log, "execute")} == {"4x16"}
    assert events(served.log, "compile") == []


def load_test(served: Served, requests: int, clients: int) -> Load:
    """Every answer is compared with the one that its text got first, to the byte."""
    first = [ask(served, {"inputs": text}) for text in TEXTS]

    def wrong(index: int, answer: Any) -> str | None:
        return None if answer == first[index] else f"another answer for text {index}"

    bodies = [json.dumps({"inputs": text}).encode() for text in TEXTS]
    found = measure(lambda: http_sender(served.url), bodies, requests, clients, wrong)
    sys.stdout.write(found.line() + "\n")
    assert (found.requests, found.errors) == (requests, {})
    assert 0 < found.p50_ms <= found.p95_ms <= found.p99_ms <= found.max_ms
    return found


def test_three_hundred_synchronous_requests_without_an_error(served: Served) -> None:
    load_test(served, 300, clients=2)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_thousand_synchronous_requests_without_an_error(served: Served) -> None:
    load_test(served, 10_000, clients=1)
