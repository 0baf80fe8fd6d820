"""The GenAI engine: the texts of transformers and of the static path where it has the settings, and clear refusals."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_decoders import EOS, greedy_by_transformers, make_decoder, prompts

from compile.errors import ArtifactError, CompileError
from compile.generation.constraints import Constraint
from compile.generation.requests import Asked, Completion, Request, TextRules
from compile.generation.sampling import Sampling
from compile.generation.static import StaticGenerator
from compile.shapes import Shape
from compile.targets.cpu import has_bf16
from compile.targets.decoders import Generator, load_decoder_target
from compile.targets.openvino import openvino_package
from compile.targets.openvino_decoder import request_seed
from compile.targets.openvino_gates import keep_gates_apart

SHAPE, NEW_TOKENS = Shape(length=40, batch=4), 16
LENGTHS = [17, 2, 40, 33, 9, 31, 40, 1]
WITHOUT_WINDOWS = ["llama", "qwen2", "qwen3", "gpt2", "phi3", "gemma"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory):
    return functools.cache(lambda name: make_decoder(tmp_path_factory.mktemp("decoder") / name, name))


@pytest.fixture(scope="module")
def engines(models, tmp_path_factory: pytest.TempPathFactory):
    return functools.cache(lambda name, precision="fp32": built(models(name), tmp_path_factory.mktemp(name), precision))


def built(model_dir: Path, folder: Path, precision: str = "fp32", target: str = "openvino") -> Any:
    toolchain = load_decoder_target(target, NEW_TOKENS)
    prepared = toolchain.prepare(model_dir, folder, precision, [])
    assert toolchain.prepare(model_dir, folder, precision, []) == prepared
    (folder / "out").mkdir()
    toolchain.compile(prepared, SHAPE, precision, folder / "out")
    return toolchain.load(folder / "out", SHAPE, precision)


def generate(engine: Generator, requests: list[Request], sampling: Sampling, text: TextRules) -> dict[str, Completion]:
    found = list(engine.generate(requests, sampling, text))
    assert sorted(one.row_id for one in found) == sorted(request.row_id for request in requests)
    return {one.row_id: one for one in found}


def requests_of(lengths: list[int] = LENGTHS) -> list[Request]:
    return [Request(str(index), text) for index, text in enumerate(prompts(lengths))]


@pytest.mark.parametrize("architecture", WITHOUT_WINDOWS)
def test_greedy_texts_are_those_of_transformers(engines, models, architecture: str) -> None:
    requests = requests_of()
    sampling = Sampling(max_new_tokens=16, eos_token_id=(EOS,))
    found = generate(engines(architecture), requests, sampling, TextRules())
    for request in requests:
        expected = greedy_by_transformers(models(architecture), request.token_ids, 16)
        assert list(found[request.row_id].token_ids) == expected
        assert found[request.row_id].finish_reason == ("stop" if expected[-1] == EOS else "length")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"repetition_penalty": 1.7},
        {"stop_token_ids": (44, 92, 112)},
        {"min_new_tokens": 9, "stop_token_ids": (44, 92, 112)},
        {"stop_strings": ("e", "th")},
        {"max_new_tokens": 1},
    ],
)
def test_settings_mean_what_they_mean_on_the_static_path(
    engines, models, tmp_path: Path, options: dict[str, Any]
) -> None:
    from tokenizers import Tokenizer

    text = TextRules(Tokenizer.from_file(str(models("llama") / "tokenizer.json")).decode)
    sampling = Sampling(**{"max_new_tokens": 16, "eos_token_id": (EOS,), **options})
    static = generate(StaticGenerator(built(models("llama"), tmp_path, target="torch")), requests_of(), sampling, text)
    found = generate(engines("llama"), requests_of(), sampling, text)
    for row, one in static.items():
        assert found[row].token_ids == one.token_ids
        assert found[row].finish_reason == one.finish_reason
        if "repetition_penalty" not in options:
            assert found[row].log_probability == pytest.approx(one.log_probability, abs=1e-2)


def test_sampling_is_seeded_per_row_and_sample(engines) -> None:
    prompt = prompts([20])[0]
    rows = [Request(f"row {index}", prompt, sample) for index in range(6) for sample in range(2)]
    sampling = Sampling(max_new_tokens=16, do_sample=True, top_k=0, seed=3)
    engine = engines("llama")
    found = {(one.row_id, one.sample): one for one in engine.generate(rows, sampling, TextRules())}
    assert len({one.token_ids for one in found.values()}) == 12
    again = {(one.row_id, one.sample): one.token_ids for one in engine.generate(rows[::-1], sampling, TextRules())}
    assert again == {key: one.token_ids for key, one in found.items()}
    assert request_seed(3, "row 0", 0) != request_seed(4, "row 0", 0)


def test_a_run_that_is_left_early_leaves_nothing_behind(engines) -> None:
    engine, sampling = engines("llama"), Sampling(max_new_tokens=16)
    whole = generate(engine, requests_of(), sampling, TextRules())
    run = engine.generate(requests_of(), sampling, TextRules())
    next(run)
    run.close()
    assert generate(engine, requests_of(), sampling, TextRules()) == whole


@pytest.mark.parametrize("text", [TextRules(), TextRules(log_probability=False)], ids=["with", "without"])
@pytest.mark.parametrize("do_sample", [False, True])
def test_nan_is_told_and_stays_in_its_row(models, engines, tmp_path: Path, text: TextRules, do_sample: bool) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    folder.mkdir()
    for path in models("llama").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][99] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    engine, sampling = built(folder, tmp_path), Sampling(max_new_tokens=6, do_sample=do_sample)
    requests = requests_of()
    clean = generate(engines("llama"), requests, sampling, text)
    for index in (2, 5):
        requests[index].token_ids[3] = 99
    found = generate(engine, requests, sampling, text)
    assert {row for row, one in found.items() if one.finish_reason == "nan_logits"} == {"2", "5"}
    assert all(found[row] == clean[row] for row in ("0", "1", "3", "4", "6", "7"))


def test_what_it_lacks_is_refused_before_anything_runs(engines) -> None:
    engine = engines("llama")
    for options, name in (
        ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size"),
        ({"sequence_bias": (((5,), 1.0),)}, "sequence_bias"),
    ):
        with pytest.raises(ValueError, match=f"no {name}; choose target openvino-slots"):
            engine.generate(requests_of(), Sampling(**options), TextRules())

    class Nothing:
        def matcher(self) -> Any:
            raise AssertionError

    constraint: Constraint = Nothing()
    with pytest.raises(ValueError, match="has no constraint"):
        engine.generate(requests_of(), Sampling(), TextRules(constraint=constraint))
    with pytest.raises(ValueError, match="request 0: its prompt of 41 tokens"):
        engine.generate([Request("x", np.ones(41, np.int64))], Sampling(), TextRules())


def test_models_with_sliding_attention_are_refused(models, tmp_path: Path) -> None:
    toolchain = load_decoder_target("openvino", NEW_TOKENS)
    with pytest.raises(CompileError, match=r"last 12 positions.*choose target openvino-slots"):
        toolchain.prepare(models("mistral"), tmp_path, "fp32", [])


def test_damaged_files_are_an_artifact_error(tmp_path: Path) -> None:
    (tmp_path / "openvino_model.xml").write_text("no graph")
    with pytest.raises(ArtifactError, match=r"openvino: 4x40 fp32"):
        load_decoder_target("openvino", NEW_TOKENS).load(tmp_path, SHAPE, "fp32")


def test_requests_with_settings_of_their_own_have_the_texts_of_the_static_path(engines, models, tmp_path: Path) -> None:
    """Among them OpenAI's penalties, which GenAI has, too."""
    asked = [
        Sampling(max_new_tokens=16),
        Sampling(max_new_tokens=9, presence_penalty=2.0),
        Sampling(max_new_tokens=16, frequency_penalty=1.5),
        Sampling(max_new_tokens=16, presence_penalty=1.5, frequency_penalty=1.0, repetition_penalty=1.3),
    ]
    requests = [
        Request(f"{row}-{number}", prompt, asked=Asked(sampling))
        for row, prompt in enumerate(prompts(LENGTHS[:4]))
        for number, sampling in enumerate(asked)
    ]
    static = StaticGenerator(built(models("llama"), tmp_path, target="torch"))
    run = Sampling(max_new_tokens=3)
    expected, found = (generate(engine, requests, run, TextRules()) for engine in (static, engines("llama")))
    assert len({one.token_ids for one in expected.values()}) > 12
    assert all(len(expected[request.row_id].token_ids) == (9 if "-1" in request.row_id else 16) for request in requests)
    same = sum(found[row].token_ids == one.token_ids for row, one in expected.items())
    assert same >= 15, "another kernel may decide a near tie otherwise"


@pytest.mark.parametrize("architecture", ["llama", "gemma"])
def test_gated_layers_that_openvino_would_fuse_run_on_one_thread(tmp_path: Path, architecture: str) -> None:
    """Of sizes for which it does so, in bf16 on a CPU with AMX: there the fused kernel ends the process (SIGFPE)."""
    if not has_bf16():
        pytest.skip("this CPU has no bf16")
    model = make_decoder(tmp_path / "model", architecture, hidden_size=64, intermediate_size=256)
    code = (
        "import sys, test_openvino_decoder as here; from pathlib import Path\n"
        "engine = here.built(Path(sys.argv[1]), Path(sys.argv[2]), 'bf16')\n"
        "found = here.generate(engine, here.requests_of(), here.Sampling(max_new_tokens=4), here.TextRules())\n"
        "print(len(found))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, model, tmp_path], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stdout) == (0, f"{len(LENGTHS)}\n"), done.stderr


@pytest.mark.parametrize("act", ["swish", "gelu"])
def test_a_gate_written_otherwise_is_the_same_to_the_last_bit(act: str) -> None:
    openvino = openvino_package()
    from openvino import opset13

    rng = np.random.default_rng(0)
    given = rng.normal(size=(3, 64)).astype(np.float32)
    weights = [rng.normal(size=size).astype(np.float32) for size in ((256, 64), (256, 64), (64, 256))]

    def layer() -> Any:
        row = opset13.parameter([3, 64], np.float32)
        gate, up = (opset13.matmul(row, opset13.constant(weight), False, True) for weight in weights[:2])
        opened = opset13.swish(gate) if act == "swish" else opset13.gelu(gate, "tanh")
        product = opset13.multiply(opened, up)
        return openvino.Model([opset13.matmul(product, opset13.constant(weights[2]), False, True)], [row])

    plain, apart = layer(), layer()
    assert keep_gates_apart(apart) == 1
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    found = [openvino.Core().compile_model(graph, "CPU", config)(given)[0] for graph in (plain, apart)]
    np.testing.assert_array_equal(*found)
