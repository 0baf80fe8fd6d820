"""What every static decoder promises, tried on every decoder target and architecture with random tiny models."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from neuron_tools import neuron_double
from numpy.typing import NDArray
from tiny_decoders import ARCHITECTURES, EOS, greedy_by_transformers, make_decoder, prompts

from compile.compilations import compilations
from compile.errors import ArtifactError, CompileError, ShapeMismatch
from compile.generation.requests import Completion, Request, TextRules
from compile.generation.sampling import Sampling
from compile.generation.static import StaticGenerator
from compile.shapes import Shape
from compile.targets.cpu import has_bf16
from compile.targets.decoders import StaticDecoder, load_decoder_target

SHAPE, NEW_TOKENS = Shape(length=40, batch=4), 16
NEURON = ("llama", "qwen2", "qwen3", "phi3")
"""Architectures of ours that optimum-neuron generates with; over the double, which computes on the CPU."""
KINDS = [
    ("torch", "fp32"),
    ("openvino-slots", "fp32"),
    ("neuron", "fp32"),
    ("neuron", "bf16"),
    *([("torch", "bf16"), ("openvino-slots", "bf16")] if has_bf16() else []),
]
MODELS = [
    pytest.param(target, precision, architecture, marks=[pytest.mark.slow] if slow else [])
    for target, precision in KINDS
    for architecture in ARCHITECTURES
    if target != "neuron" or (architecture in NEURON and (precision == "fp32" or architecture == "llama"))
    for slow in [(target, architecture) == ("neuron", "phi3")]
]
LENGTHS = [17, 2, 40, 33, 9, 31, 40, 1]

every_kind = pytest.mark.parametrize(("target", "precision"), KINDS)
every_model = pytest.mark.parametrize(("target", "precision", "architecture"), MODELS)


@pytest.fixture(scope="module", autouse=True)
def sdk() -> Iterator[None]:
    with neuron_double():
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory):
    return functools.cache(lambda name: make_decoder(tmp_path_factory.mktemp("decoder") / name, name))


@pytest.fixture(scope="module")
def artifacts(models, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, int]]:
    """Compile a model of an architecture once; the folder, and how many compilations were counted."""

    @functools.cache
    def artifact(target: str, precision: str, architecture: str) -> tuple[Path, int]:
        toolchain, out = load_decoder_target(target, NEW_TOKENS), tmp_path_factory.mktemp(f"{target}-{precision}")
        prepared = toolchain.prepare(models(architecture), tmp_path_factory.mktemp("work"), precision, [])
        before = compilations()
        toolchain.compile(prepared, SHAPE, precision, out)
        return out, compilations() - before

    return artifact


@pytest.fixture(scope="module")
def decoders(artifacts) -> Callable[..., StaticDecoder]:
    """A loaded decoder, one per target, precision and architecture."""

    @functools.cache
    def decoder(target: str, precision: str, architecture: str = "llama") -> StaticDecoder:
        folder, _ = artifacts(target, precision, architecture)
        return load_decoder_target(target, NEW_TOKENS).load(folder, SHAPE, precision)

    return decoder


def generate(decoder: StaticDecoder, texts: list[NDArray[np.int64]], sampling: Sampling) -> dict[str, Completion]:
    requests = [Request(str(index), text) for index, text in enumerate(texts)]
    found = list(StaticGenerator(decoder).generate(requests, sampling, TextRules()))
    assert sorted(int(one.row_id) for one in found) == list(range(len(texts)))
    return {one.row_id: one for one in found}


def feed(decoder: StaticDecoder, slot: int, tokens: NDArray[np.int64], prompt: int) -> NDArray[np.float32]:
    """Logits after the prompt and after each further token, which is fed as if it had been chosen; others are idle."""
    lines = [decoder.prefill([slot], [tokens[:prompt]])[0]]
    for position in range(prompt, len(tokens)):
        ids, places = np.zeros((2, decoder.grid.slots), np.int64)
        ids[slot], places[slot] = tokens[position], position
        lines.append(decoder.decode(ids, places)[slot])
    return np.stack(lines)


@pytest.mark.parametrize(
    ("target", "precision", "architecture"), [model for model in MODELS if model.values[1] == "fp32"]
)
def test_greedy_texts_are_those_of_transformers(
    decoders, models, target: str, precision: str, architecture: str
) -> None:
    """Token for token, fp32, over more prompts than slots, so that slots are refilled next to living rows."""
    texts = prompts(LENGTHS)
    found = generate(decoders(target, precision, architecture), texts, Sampling(max_new_tokens=16, eos_token_id=(EOS,)))
    for index, text in enumerate(texts):
        expected = greedy_by_transformers(models(architecture), text, 16)
        assert list(found[str(index)].token_ids) == expected
        assert found[str(index)].finish_reason == ("stop" if expected[-1] == EOS else "length")


@every_model
def test_logits_are_the_models_at_every_position(
    decoders, models, architecture: str, target: str, precision: str
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    decoder = decoders(target, precision, architecture)
    reference = AutoModelForCausalLM.from_pretrained(models(architecture), dtype=torch.float32)
    for prompt, total in ((1, 9), (23, 39), (40, 56)):
        tokens = prompts([total], seed=total)[0]
        with torch.inference_mode():
            expected = reference(torch.from_numpy(tokens)[None]).logits[0, prompt - 1 :].numpy()
        assert expected.std() > 0.1, "a model with nearly constant logits would hide mistakes"
        gap = np.abs(feed(decoder, 2, tokens, prompt) - expected).max()
        assert gap < {"fp32": 1e-4, "bf16": 0.1}[precision] * max(1, np.abs(expected).max())


@every_model
def test_a_row_has_the_same_bytes_in_any_slot_beside_any_neighbours(
    decoders, architecture: str, target: str, precision: str
) -> None:
    decoder = decoders(target, precision, architecture)
    tokens = prompts([30], seed=5)[0]
    alone = feed(decoder, 0, tokens, 21)
    assert np.isfinite(alone).all()
    for slot in range(decoder.grid.slots):
        assert feed(decoder, slot, tokens, 21).tobytes() == alone.tobytes()
    other = prompts([40, 40, 40], seed=6)
    lines = []
    for index, prompt in enumerate(other):  # neighbours before, in the middle of, and after the row's prompt
        if index == 1:
            lines.append(decoder.prefill([1], [tokens[:21]])[0])
        decoder.prefill([[0, 2, 3][index]], [prompt])
    for position in range(21, 30):
        ids = np.array([position, tokens[position], 300 - position, 7], np.int64)
        lines.append(decoder.decode(ids, np.array([position + 20, position, 40 + position % 3, 55]))[1])
    assert np.stack(lines).tobytes() == alone.tobytes()


@every_kind
@pytest.mark.parametrize("options", [{}, {"do_sample": True, "temperature": 1.2, "top_k": 30, "top_p": 0.9, "seed": 4}])
def test_texts_are_the_same_in_any_order_and_company(decoders, target: str, precision: str, options: dict) -> None:
    decoder = decoders(target, precision)
    texts = prompts([3, 40, 22, 9, 31, 17, 5, 38, 12])
    sampling = Sampling(max_new_tokens=16, eos_token_id=(EOS, 9, 11), repetition_penalty=1.1, **options)
    requests = [Request(f"row {row}", text, sample) for row, text in enumerate(texts) for sample in range(2)]
    together = {
        (one.row_id, one.sample): one for one in StaticGenerator(decoder).generate(requests, sampling, TextRules())
    }
    assert len(together) == len(requests)
    rng = np.random.default_rng(0)
    for _ in range(3):
        some = [requests[index] for index in rng.permutation(len(requests))[: rng.integers(1, len(requests))]]
        for one in StaticGenerator(decoder).generate(some, sampling, TextRules()):
            assert one == together[one.row_id, one.sample]
    if options:
        assert any(together[f"row {row}", 0].token_ids != together[f"row {row}", 1].token_ids for row in range(9))


@pytest.mark.parametrize(("target", "precision"), [kind for kind in KINDS if kind[0] != "neuron"])
def test_nan_stays_in_its_row_and_leaves_with_it(models, target: str, precision: str, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    folder.mkdir()
    for path in models("llama").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][99] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    toolchain = load_decoder_target(target, NEW_TOKENS)
    (tmp_path / "out").mkdir()
    toolchain.compile(toolchain.prepare(folder, tmp_path, precision, []), SHAPE, precision, tmp_path / "out")
    decoder = toolchain.load(tmp_path / "out", SHAPE, precision)
    texts = prompts([40, 12, 30, 25, 40, 7, 19])
    for text in texts:
        text[text == 99] = 98
    # Greedy rows of a random model may choose the poisoned token themselves, so it is ruled out.
    sampling = Sampling(max_new_tokens=16, sequence_bias=(((99,), -1e9),))
    clean = generate(decoder, texts, sampling)
    poisoned = [*texts, *prompts([40, 33, 40, 18], seed=8)]
    for text in poisoned[len(texts) :]:
        text[3] = 99
    found = generate(decoder, poisoned, sampling)
    assert {found[str(index)].finish_reason for index in range(7, 11)} == {"nan_logits"}
    assert {row: found[row] for row in clean} == clean


@every_kind
def test_other_shapes_are_refused(decoders, target: str, precision: str) -> None:
    decoder = decoders(target, precision)
    text = prompts([40])[0]
    for slots, given in (([0], [prompts([41])[0]]), ([4], [text]), ([0, 1], [text, text]), ([0, 1], [text]), ([], [])):
        with pytest.raises(ShapeMismatch):
            decoder.prefill(slots, given)
    with pytest.raises(ShapeMismatch, match="1 to 40"):
        decoder.prefill([0], [text[:0]])
    good = np.zeros(4, np.int64)
    for ids, places in ((good[:3], good), (good, good[:3]), (good, good + 56), (good, good - 1)):
        with pytest.raises(ShapeMismatch):
            decoder.decode(ids, places)


def test_an_unknown_target_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(
        ValueError, match="'onnxruntime' cannot generate; choose one of: torch, openvino, openvino-slots, neuron"
    ):
        load_decoder_target("onnxruntime", 8)


@every_kind
def test_loading_compiles_nothing_and_compiling_counts(
    artifacts, decoders, models, target: str, precision: str, tmp_path: Path
) -> None:
    toolchain = load_decoder_target(target, NEW_TOKENS)
    prepared = toolchain.prepare(models("llama"), tmp_path / "work", precision, [])
    assert toolchain.prepare(models("llama"), tmp_path / "work", precision, []) == prepared
    folder, compiled = artifacts(target, precision, "llama")
    assert compiled >= 1
    before = compilations()
    loaded = toolchain.load(folder, SHAPE, precision)
    assert compilations() == before
    texts, sampling = prompts([5, 40, 12]), Sampling(max_new_tokens=8)
    assert generate(loaded, texts, sampling) == generate(decoders(target, precision), texts, sampling)


DAMAGE = [
    ("torch", "model.safetensors"),
    ("openvino-slots", "decode.blob"),
    ("neuron", "model.pt"),
    ("neuron", "neuron_config.json"),
    ("neuron", "checkpoint/weights/tp0_sharded_checkpoint.safetensors"),
]


@pytest.mark.parametrize(("target", "file"), DAMAGE)
@pytest.mark.parametrize("damage", ["missing", "garbage"])
def test_damaged_files_are_an_artifact_error(artifacts, target: str, file: str, damage: str, tmp_path: Path) -> None:
    folder = shutil.copytree(artifacts(target, "fp32", "llama")[0], tmp_path / "out")
    (folder / file).unlink()
    if damage == "garbage":
        (folder / file).write_bytes(b"\x00garbage\xff" * 999)
    with pytest.raises(ArtifactError, match=rf"{target}.*4x40"):
        load_decoder_target(target, NEW_TOKENS).load(folder, SHAPE, "fp32")


@pytest.mark.parametrize("target", ["openvino-slots", "neuron"])
def test_an_artifact_of_other_sizes_is_refused_at_load(artifacts, target: str) -> None:
    folder, _ = artifacts(target, "fp32", "llama")
    for other, tokens in ((Shape(length=40, batch=5), 16), (Shape(length=41, batch=4), 16), (SHAPE, 17)):
        with pytest.raises(ArtifactError, match="not compiled for"):
            load_decoder_target(target, tokens).load(folder, other, "fp32")


@pytest.mark.parametrize("target", ["torch", "openvino-slots", "neuron"])
def test_embeddings_that_follow_the_longest_row_are_refused(models, target: str, tmp_path: Path) -> None:
    import json

    for path in models("llama").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 50}
    (tmp_path / "config.json").write_text(json.dumps(config))
    toolchain = load_decoder_target(target, NEW_TOKENS)
    (tmp_path / "out").mkdir()
    with pytest.raises(CompileError, match="depend on their neighbours"):
        toolchain.compile(toolchain.prepare(tmp_path, tmp_path / "work", "fp32", []), SHAPE, "fp32", tmp_path / "out")
