"""Decoders on NeuronCores, by the real optimum-neuron over the test double: its traps, and what a host may lack.

What every decoder promises is in test_decoders_conformance.py. Exports are made in this process here, to save seconds.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifact_tools import open_store, random_rows
from neuron_tools import events, neuron_double
from numpy.typing import NDArray
from tiny_decoders import EOS, greedy_by_transformers, make_decoder, prompts

from compile.artifacts import artifact_spec
from compile.costs import default_costs
from compile.errors import ArtifactError, CompileError, DeviceError, ModelError, ShapeMismatch, TargetUnavailable
from compile.generation.build import build_missing_decoders
from compile.generation.parity import CausalReference, prove_decoder
from compile.generation.requests import Asked, Completion, Request, TextRules
from compile.generation.sampling import Sampling
from compile.generation.static import as_generator
from compile.model import read_model
from compile.neuron_settings import NeuronSettings
from compile.parity import TOLERANCES
from compile.planner import make_plan
from compile.shapes import Shape
from compile.targets.decoders import Generator, StaticDecoder
from compile.targets.neuron_decoder import NeuronDecoderTarget, make
from compile.targets.neuron_decoder_export import DecoderExport, export
from compile.targets.neuron_models import check_memory, check_sizes

SHAPE, NEW_TOKENS = Shape(length=20, batch=3), 8
HOST = make(NEW_TOKENS)
DEVICE = make(NEW_TOKENS, NeuronSettings(on_device_sampling=True))
GREEDY = Sampling(max_new_tokens=NEW_TOKENS, eos_token_id=(EOS,))


@pytest.fixture(scope="module", autouse=True)
def sdk() -> Iterator[None]:
    with neuron_double():
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decoder(tmp_path_factory.mktemp("models") / "llama")


def exported(model: Path, folder: Path, target: NeuronDecoderTarget) -> Path:
    export(DecoderExport(**{**wanted(target), "model_dir": str(model), "out_dir": str(folder)}))
    return folder


def wanted(target: NeuronDecoderTarget) -> dict[str, Any]:
    return {name: getattr(target.wanted(Path(), SHAPE, "fp32", Path()), name) for name in DecoderExport.__slots__}


@pytest.fixture(scope="module")
def on_host(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(model, tmp_path_factory.mktemp("host"), HOST)


@pytest.fixture(scope="module")
def on_device(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(model, tmp_path_factory.mktemp("device"), DEVICE)


def texts_of(loaded: StaticDecoder | Generator, texts: Sequence[NDArray[np.int64]], sampling: Sampling) -> list[Any]:
    """Completions in the order of the texts."""
    requests = [Request(str(row), text) for row, text in enumerate(texts)]
    found: dict[str, Completion] = {
        one.row_id: one for one in as_generator(loaded).generate(requests, sampling, TextRules())
    }
    return [found[str(row)] for row in range(len(texts))]


@pytest.mark.parametrize("target", [HOST, DEVICE], ids=["host", "device"])
def test_what_optimum_neuron_would_cut_or_overrun_silently_is_refused(
    target: NeuronDecoderTarget, on_host: Path, on_device: Path
) -> None:
    import torch

    loaded = target.load(on_host if target is HOST else on_device, SHAPE, "fp32")
    generator = as_generator(loaded)
    for tokens, new, message in ((21, 8, "prompt of 21 tokens does not fit"), (20, 9, "20 prompt and 9 new tokens")):
        with pytest.raises(ValueError, match=message):
            list(generator.generate([Request("a", prompts([tokens])[0])], Sampling(max_new_tokens=new), TextRules()))
    graphs = loaded._graphs
    with pytest.raises(ShapeMismatch, match="takes 1 to 20"):
        graphs.prefill([0], prompts([21]))
    with pytest.raises(ShapeMismatch, match="a slot has 28"):
        graphs.decode(np.zeros(3, np.int64), np.array([0, 28, 0]))
    with pytest.raises(ShapeMismatch, match=r"both must be \(3,\)"):
        graphs.decode(np.zeros(2, np.int64), np.zeros(2, np.int64))
    if target is HOST:  # and that is what happens without a refusal: no error, and the last tokens count for nothing
        long = torch.from_numpy(prompts([30])[0])[None]
        other = long.clone().index_fill_(1, torch.arange(20, 30), 5)
        rest = (torch.arange(30)[None], torch.tensor([0]), torch.ones(1, 3))
        assert torch.equal(graphs._model(long, *rest), graphs._model(other, *rest))


def test_the_double_takes_the_shapes_and_types_that_it_compiled_and_no_others(on_host: Path) -> None:
    import torch

    raw = HOST.load(on_host, SHAPE, "fp32")._graphs._model._traced_model
    params = torch.ones(3, 3)
    slots = torch.arange(3, dtype=torch.int32)
    for rows, columns in ((3, 2), (1, 19), (2, 1), (1, 1)):
        ids = torch.zeros(rows, columns, dtype=torch.int32)
        with pytest.raises(torch.jit.Error, match="no graph was compiled for input_ids"):
            raw(ids, ids, slots[:rows], params[:rows])
    good = torch.zeros(3, 1, dtype=torch.int32)
    assert raw(good, good, slots, params).shape == (3, 1, 320)
    for inputs in (
        (good.long(), good, slots, params),
        (good, good, slots[:2], params),
        (good, good, slots, params[:1]),
    ):
        with pytest.raises(RuntimeError, match=r"the graph takes .* and nothing else, not"):
            raw(*inputs)


def poisoned(artifact: Path, folder: Path, token: int) -> Path:
    """A copy whose embedding of one token is NaN, as after a bit flip in the device's memory."""
    import torch
    from safetensors.torch import load_file, save_file

    path = shutil.copytree(artifact, folder) / "checkpoint/weights/tp0_sharded_checkpoint.safetensors"
    tensors = load_file(path)
    tensors["embed_tokens.weight"][token] = torch.nan
    save_file(tensors, path)
    return folder


def run(decoder: StaticDecoder, slot: int, tokens: NDArray[np.int64], prompt: int) -> NDArray[np.float32]:
    """Logits after the prompt and each further token; the other slots are idle."""
    lines = [decoder.prefill([slot], [tokens[:prompt]])[0]]
    for position in range(prompt, len(tokens)):
        ids, places = np.zeros((2, decoder.grid.slots), np.int64)
        ids[slot], places[slot] = tokens[position], position
        lines.append(decoder.decode(ids, places)[slot])
    return np.stack(lines)


def test_nan_beyond_the_prompts_places_does_not_reach_the_slots_next_text(on_host: Path, tmp_path: Path) -> None:
    """A prefill does not write there, and zero times NaN is NaN: the place must be written again, layer by layer."""
    decoder = HOST.load(poisoned(on_host, tmp_path / "a", 99), SHAPE, "fp32")
    clean, neighbour = prompts([27, 27], seed=3)
    clean[clean == 99] = neighbour[neighbour == 99] = 98
    expected = run(decoder, 1, clean, 18)
    assert np.isfinite(expected).all()
    stain = clean.copy()
    stain[[22, 24]] = 99
    assert np.isnan(run(decoder, 1, stain, 18)[-1]).all()
    decoder.prefill([0], [neighbour[:19]])
    lines = [decoder.prefill([1], [clean[:18]])[0]]
    beside = []
    for step in range(8):  # the neighbour lived through the washing, and goes on as if nothing had been
        ids, places = np.zeros((2, 3), np.int64)
        ids[:2], places[:2] = (neighbour[19 + step], clean[18 + step]), (19 + step, 18 + step)
        logits = decoder.decode(ids, places)
        beside.append(logits[0])
        lines.append(logits[1])
    assert np.stack(lines).tobytes() == expected[:9].tobytes()
    assert np.stack(beside).tobytes() == run(decoder, 2, neighbour, 19)[1:].tobytes()


def test_a_poisoned_prompt_stays_in_its_row_and_leaves_with_it(on_host: Path, tmp_path: Path) -> None:
    decoder = HOST.load(poisoned(on_host, tmp_path / "a", 99), SHAPE, "fp32")
    texts = [np.where(text == 99, 98, text) for text in prompts([20, 12, 7, 19, 2, 1, 20, 5])]
    sampling = Sampling(max_new_tokens=NEW_TOKENS, sequence_bias=(((99,), -1e9),))
    expected = texts_of(decoder, texts, sampling)
    bad = [np.array([5, 99, 6]), np.array([99])]
    found = texts_of(decoder, [texts[0], bad[0], *texts[1:5], bad[1], *texts[5:]], sampling)
    assert [found[row].finish_reason for row in (1, 6)] == ["nan_logits"] * 2
    kept = [one for row, one in enumerate(found) if row not in (1, 6)]
    assert [one.token_ids for one in kept] == [one.token_ids for one in expected]


def test_tokens_that_the_device_chooses_greedily_are_those_of_transformers(model: Path, on_device: Path) -> None:
    engine = DEVICE.load(on_device, SHAPE, "fp32")
    texts = prompts([17, 2, 20, 3, 1, 20, 11])
    for text, one in zip(texts, texts_of(engine, texts, GREEDY), strict=True):
        assert list(one.token_ids) == greedy_by_transformers(model, text, NEW_TOKENS)
        assert np.isnan(one.log_probability), "the device tells none"
    assert engine.use is not None
    assert engine.use.prompts == 7


def test_what_the_device_draws_is_within_its_settings_and_its_independence_is_measured(
    model: Path, on_device: Path
) -> None:
    engine = DEVICE.load(on_device, SHAPE, "fp32")
    reference, text = CausalReference(model), prompts([9])[0]
    best = set(np.argsort(reference.logits(text, 9)[-1])[-4:].tolist())
    sampled = Sampling(max_new_tokens=1, do_sample=True, top_k=4, temperature=1.5)
    first = {one.token_ids[0] for one in texts_of(engine, [text] * 40, sampled)}
    assert first <= best
    assert len(first) > 1
    record = prove_decoder(engine, prompts([5, 20, 12, 2]), reference, TOLERANCES["fp32"], {}, new_tokens=NEW_TOKENS)
    assert record.passed
    assert record.generation is not None
    assert not record.generation.promised
    assert not record.generation.independent
    assert (DEVICE.independent, HOST.independent) == (False, True)


def test_each_slot_is_sampled_by_the_settings_of_its_own_row(model: Path, on_device: Path) -> None:
    engine = DEVICE.load(on_device, SHAPE, "fp32")
    hot = Sampling(max_new_tokens=NEW_TOKENS, do_sample=True, top_k=200, temperature=9.0)
    texts = prompts([9, 17, 4, 12, 6, 20])
    requests = [Request(str(row), text, asked=Asked(GREEDY) if row % 2 else None) for row, text in enumerate(texts)]
    found = {one.row_id: list(one.token_ids) for one in engine.generate(requests, hot, TextRules())}
    greedy = [greedy_by_transformers(model, text, NEW_TOKENS) for text in texts]
    assert [found[str(row)] == greedy[row] for row in range(6)] == [False, True] * 3


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"repetition_penalty": 1.1}, "repetition_penalty"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"logprobs": 1}, "logprobs"),
    ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size"),
    ({"sequence_bias": (((5,), 1.0),)}, "logit_bias"),
    ({"min_new_tokens": 1}, "min_new_tokens"),
    ({"do_sample": True, "min_p": 0.1}, "min_p"),
    ({"do_sample": True, "top_k": 0}, "top_k of 1 to 256, not 0"),
    ({"do_sample": True, "top_k": 300}, "top_k of 1 to 256, not 300"),
]


@pytest.mark.parametrize(("settings", "message"), UNSUPPORTED, ids=[message for _, message in UNSUPPORTED])
def test_the_devices_sampler_says_what_it_has_not(settings: dict[str, Any], message: str, on_device: Path) -> None:
    sampling = Sampling(**settings)
    assert message in str(DEVICE.unsupported(sampling, TextRules()))
    assert HOST.unsupported(sampling, TextRules()) is None
    with pytest.raises(ValueError, match=message):
        texts_of(DEVICE.load(on_device, SHAPE, "fp32"), prompts([4]), sampling)


@pytest.mark.parametrize("field", [{"auto_cast": "all"}, {"optlevel": "1"}, {"inline_weights_to_neff": False}])
def test_settings_of_encoders_are_refused(field: dict[str, Any]) -> None:
    lacking = make(8, NeuronSettings(**field)).unsupported(Sampling(), TextRules())
    assert lacking is not None
    assert lacking.startswith(f"neuron.{next(iter(field))} is of encoders")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "neuronxcc_version",
            "2.20.1",
            r"neuronx-cc 2\.20\.1, and 2\.21.* is installed; install that version, or compile",
        ),
        ("optimum_neuron_version", "0.4.4", r"optimum-neuron 0\.4\.4, and 0\.4\.5 is installed"),
        ("batch_size", 4, "not compiled for what is asked here: batch_size 4 instead of 3"),
        ("max_context_length", 28, "max_context_length 28 instead of 20"),
        ("on_device_sampling", True, "on_device_sampling True instead of False"),
        ("torch_dtype", "bfloat16", "torch_dtype bfloat16 instead of float32"),
    ],
)
def test_an_export_of_something_else_is_refused(
    field: str, value: Any, message: str, on_host: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(on_host, tmp_path / "a")
    path = folder / "neuron_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(ArtifactError, match=f"neuron: 3x20 fp32: .*{message}"):
        HOST.load(folder, SHAPE, "fp32")


@pytest.mark.parametrize(
    ("host", "settings", "message"),
    [
        (None, {}, "no Neuron device"),
        ("trn2.48xlarge:1", {}, "this host is of the kind trn2"),
        ("inf2.xlarge:1", {"memory": 1000}, "does not fit into the core's device memory"),
    ],
)
def test_a_host_that_cannot_run_it_says_what_it_lacks(
    host: str | None, settings: dict[str, Any], message: str, on_host: Path
) -> None:
    with neuron_double(host, **settings), pytest.raises(TargetUnavailable, match=f"neuron: 3x20 .*{message}"):
        HOST.load(on_host, SHAPE, "fp32")


def test_more_cores_than_the_process_sees_are_an_error(
    on_host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(on_host, tmp_path / "a")
    path = folder / "neuron_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tp_degree": 2}))
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "1")
    with pytest.raises(
        TargetUnavailable, match=r"tensor_parallel_size: 2 takes as many NeuronCores.* sees 1; free or add"
    ):
        make(NEW_TOKENS, NeuronSettings(tensor_parallel_size=2)).load(folder, SHAPE, "fp32")


def test_a_graph_that_fails_is_a_device_error(on_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = HOST.load(on_host, SHAPE, "fp32")
    monkeypatch.setenv("NEURON_DOUBLE_EXECUTE", "raise@3x1")
    decoder.prefill([0], prompts([4]))
    with pytest.raises(DeviceError, match=r"neuron: .*nrt_execute status=1"):
        decoder.decode(np.zeros(3, np.int64), np.zeros(3, np.int64))


def test_models_that_it_would_compute_otherwise_are_refused(tmp_path: Path, model: Path) -> None:
    gpt2 = make_decoder(tmp_path / "gpt2", "gpt2")
    with pytest.raises(CompileError, match=r"is a gpt2; optimum-neuron generates with: .*llama.*qwen2, qwen3"):
        HOST.prepare(gpt2, tmp_path, "fp32", [])
    windows = make_decoder(tmp_path / "qwen2", "qwen2")
    path = windows / "config.json"
    config = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "layer_types": None}
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    with pytest.raises(CompileError, match="attention over the last 8 positions, and optimum-neuron's sees all"):
        HOST.prepare(windows, tmp_path, "fp32", [])
    few = shutil.copytree(model, tmp_path / "few")
    path = few / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": 200}))
    HOST.prepare(few, tmp_path, "fp32", [])
    with pytest.raises(CompileError, match="has 200 tokens, and optimum-neuron samples among the 256 best"):
        DEVICE.prepare(few, tmp_path, "fp32", [])


def test_shapes_that_cannot_work_are_refused_before_anything_compiles(model: Path) -> None:
    with pytest.raises(ModelError, match="a prompt of one token for a decode step"):
        check_sizes(model, Shape(length=1, batch=4), 8)
    huge = Shape(length=1 << 16, batch=1 << 12)
    with pytest.raises(ModelError, match=r"GiB, and 1 NeuronCores of inf2 have 16; give shapes fewer slots, or raise"):
        check_memory(model, huge, 1 << 18, "bf16", NeuronSettings())


def test_more_ranks_than_the_double_has_are_refused_by_it(model: Path, tmp_path: Path) -> None:
    target = make(NEW_TOKENS, NeuronSettings(tensor_parallel_size=2))
    with pytest.raises(NotImplementedError, match="neuron test double"):
        exported(model, tmp_path, target)


@pytest.mark.slow  # test_neuron_compiler.py has the same of encoders
def test_a_compiler_that_is_killed_is_an_error_with_advice(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_DOUBLE_COMPILE", "kill@3x1")
    monkeypatch.setenv("NEURON_DOUBLE_LOG", str(tmp_path / "log"))
    (tmp_path / "out").mkdir()
    with pytest.raises(CompileError, match=r"neuron: 3x20 fp32 was not compiled: the compiler was killed \(signal 9\)"):
        HOST.compile(model, SHAPE, "fp32", tmp_path / "out")
    assert [event["shape"] for event in events(tmp_path / "log", "compile")] == ["1x20", "3x1"]


def test_an_artifact_is_an_export_for_everyone(on_host: Path, model: Path) -> None:
    """optimum-neuron's own generate, from the folder alone."""
    import torch
    from optimum.neuron import NeuronModelForCausalLM

    text = prompts([11])[0]
    found = NeuronModelForCausalLM.from_pretrained(on_host).generate(
        torch.from_numpy(text)[None], do_sample=False, max_new_tokens=NEW_TOKENS
    )
    expected = greedy_by_transformers(model, text, NEW_TOKENS)
    assert found[0, 11 : 11 + len(expected)].tolist() == expected


def test_compiled_without_a_device_it_is_pending_until_it_was_proven_on_one(model: Path, tmp_path: Path) -> None:
    store, info = open_store(tmp_path), read_model(model, classifier=False)
    plan = make_plan([SHAPE], default_costs("neuron", NEW_TOKENS))
    given = (plan, "bf16", random_rows(info, [3, 20, 9]), TOLERANCES["bf16"])
    with neuron_double(None):
        (made,) = build_missing_decoders(store, HOST, info, model, *given)
    assert (made.parity, made.timing) == (None, None)
    assert "checkpoint/weights/tp0_sharded_checkpoint.safetensors" in made.files
    assert {"compile.log", "tokenizer.json", "model.pt", "neuron_config.json"} < set(made.files)
    log = tmp_path / "log"
    with neuron_double(log=log):
        (proven,) = build_missing_decoders(store, HOST, info, model, *given)
        spec = artifact_spec(HOST, info, SHAPE, "bf16")
        assert np.isfinite(store.load(spec, HOST).prefill([0], prompts([7]))).all()
    assert proven.parity is not None
    assert proven.parity.generation is not None
    assert (proven.parity.passed, proven.parity.moved_rows, proven.parity.generation.promised) == (True, 0, True)
    assert proven.timing is not None
    assert events(log, "compile") == []


def test_candidates_are_few_and_their_caches_small() -> None:
    shapes = make(64).candidates(1000)
    lengths = sorted({shape.length for shape in shapes})
    assert lengths == [32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1000]
    assert {shape.batch for shape in shapes if shape.length == 448} == {4, 8, 16, 32}
    assert {shape.batch for shape in shapes if shape.length == 512} == {4, 8, 16}
    assert make(8).candidates(1) == [Shape(length=2, batch=batch) for batch in (4, 8, 16, 32)]
