"""A generation job through the whole flow: the texts of transformers' generate, whatever workers and crashes do."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from staging import sqlite_catalog
from tiny_decoders import EOS, greedy_by_transformers, make_decoder
from transformers import AutoTokenizer

from compile.generation.probe import decoder_probe_shapes
from compile.targets.decoders import load_decoder_target
from jobs import DS, JobHome, jsonl, make_home, published
from pipeline import planning, steps
from pipeline.errors import JobError
from pipeline.isolation import piece_object
from pipeline.layout import shard_object
from pipeline.objects import Objects
from pipeline.run_plan import load_run
from pipeline.shard_result import ShardResult
from pipeline.tables.catalog import find_table, open_catalog
from pipeline.toolchain import job_toolchain

WORDS = "the quick brown fox jumps over a good movie and bad batch inference what is paris".split()  # noqa: SIM905
SAMPLED = {"max_new_tokens": 8, "do_sample": True, "temperature": 0.9, "top_p": 0.95, "seed": 7}


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGTHWISE_LOCK_DIR", str(tmp_path / "locks"))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a chat template, 128 positions."""
    return make_decoder(tmp_path_factory.mktemp("decoders") / "llama")


def prompts(count: int) -> list[dict[str, Any]]:
    """Rows of 1 to 8 words."""
    texts = [" ".join(WORDS[(row * 5 + k * 3) % len(WORDS)] for k in range(1 + row * 7 % 8)) for row in range(count)]
    return [{"id": f"r{row}", "text": text, "group": "ab"[row % 2]} for row, text in enumerate(texts)]


def home_of(folder: Path, model: Path, generate: dict[str, Any], **fields: Any) -> JobHome:
    defaults: dict[str, Any] = {
        "task": "generate", "target": "torch", "precision": "fp32", "shapes": ["4x24", "4x48"], "max_length": 48,
        "truncation": "reject", "generate": generate,
    }  # fmt: skip
    return make_home(folder, model, str(folder), **(defaults | fields))


def put(folder: Path, rows: list[dict[str, Any]]) -> None:
    half = len(rows) // 2
    for part, own in enumerate((rows[:half], rows[half:])):
        Objects().put(f"{folder}/in/ds={DS}/part-{part}.jsonl", jsonl(own))


def output_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / f"out/predictions/ds={DS}/part-00000.parquet").to_pylist()
    return rows


def rejects_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / f"out/rejects/ds={DS}/part-00000.parquet").to_pylist()
    return rows


def planned(home: JobHome) -> str:
    """All steps up to compile, in this process; the run."""
    context = home.context()
    steps.check(context)
    taken = steps.snapshot(context)
    steps.tokenize(context, taken["snapshot"])
    run: str = steps.plan(context, taken["snapshot"])["run"]
    steps.compile_artifacts(context, run)
    return run


def finished(home: JobHome, run: str) -> dict[str, Any]:
    context = home.context()
    steps.infer(context, run)
    steps.publish(context, run)
    steps.commit(context, run)
    return steps.report(context, run)


def run_here(home: JobHome) -> dict[str, Any]:
    """As `lengthwise run`, without its processes; the report."""
    return finished(home, planned(home))


def expected_text(model: Path, prompt: list[int], new_tokens: int) -> tuple[str, list[int], str]:
    tokens = greedy_by_transformers(model, np.array(prompt, np.int64), new_tokens)
    ended = tokens[-1] == EOS
    text = AutoTokenizer.from_pretrained(model).decode(tokens, skip_special_tokens=True)
    return text, tokens, "stop" if ended else "length"


def test_greedy_texts_are_those_of_transformers(tmp_path: Path, decoder: Path) -> None:
    source = prompts(24)
    put(tmp_path, [*source, {"id": "long", "text": "x" * 200, "group": "a"}])
    home = home_of(
        tmp_path, decoder, {"max_new_tokens": 10, "token_ids": True, "log_probability": True},
        reject_budget={"share": 0.1}, workers=1,
    )  # fmt: skip
    report = home.run()
    assert (report["rows"], report["predicted"], report["rejected"]) == (25, 24, 1)
    assert report["reject_reasons"] == {"too_long": 1}
    found = output_of(tmp_path)
    assert [(row["row_id"], row["group"]) for row in found] == [(row["id"], row["group"]) for row in source]
    tokenizer = AutoTokenizer.from_pretrained(decoder)
    for row, given in zip(found, source, strict=True):
        chat = tokenizer.apply_chat_template([{"role": "user", "content": given["text"]}], add_generation_prompt=True)
        text, tokens, reason = expected_text(decoder, chat, 10)
        assert (row["text"], row["token_ids"], row["finish_reason"]) == (text, tokens, reason)
        assert (row["token_count"], row["prompt_tokens"]) == (len(chat), len(chat))
        assert row["output_tokens"] == len(tokens)
        assert row["log_probability"] < 0
    figures = report["tokens"]
    assert figures["prompt_tokens"] == report["real_tokens"] == sum(row["token_count"] for row in found)
    assert figures["generated_tokens"] == sum(row["output_tokens"] for row in found)
    assert 0 < figures["occupancy"] <= 1
    assert 0 < report["padding_efficiency"] <= 1
    rates = [figures[f"{name}_tokens_per_second"] for name in ("prompt", "generated", "total")]
    assert rates[0] + rates[1] == pytest.approx(rates[2])
    metrics = pq.read_table(tmp_path / f"out/metrics/ds={DS}/part-00000.parquet").to_pylist()[0]
    assert metrics["generated_tokens"] == figures["generated_tokens"]


def test_chats_with_a_system_prompt(tmp_path: Path, decoder: Path) -> None:
    chats: list[Any] = [
        [{"role": "user", "content": "hi"}],
        json.dumps([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"},
                    {"role": "user", "content": "go on"}]),
        [{"role": "system", "content": "no"}, {"role": "user", "content": "hi"}],
        [{"role": "user", "content": "a movie " * 9}],
        [{"role": "user"}],
        [],
        "{",
        None,
    ]  # fmt: skip
    put(tmp_path, [{"id": f"r{row}", "chat": chat, "group": "a"} for row, chat in enumerate(chats)])
    home = home_of(
        tmp_path, decoder, {"max_new_tokens": 4, "system": "be kind"}, truncation="head",
        reject_budget={"share": 1.0}, input={"text": None, "messages": "chat"},
    )  # fmt: skip
    report = run_here(home)
    assert report["reject_reasons"] == {"bad_messages": 3, "null_text": 1}
    tokenizer = AutoTokenizer.from_pretrained(decoder)
    asked = [json.loads(chat) if isinstance(chat, str) else chat for chat in chats[:4]]
    for row, chat in zip(output_of(tmp_path), asked, strict=True):
        whole = [] if chat[0]["role"] == "system" else [{"role": "system", "content": "be kind"}]
        ids = tokenizer.apply_chat_template([*whole, *chat], add_generation_prompt=True)
        assert row["truncated_tokens"] == max(0, len(ids) - 48)
        assert row["token_count"] == min(48, len(ids))
        if len(ids) > 48:  # the message is cut, not the template around it: its last two tokens stay
            ids = [*ids[:46], *ids[-2:]]
        assert row["text"] == expected_text(decoder, ids, 4)[0]
    assert [row["truncated_tokens"] > 0 for row in output_of(tmp_path)] == [False, False, False, True]


@pytest.mark.parametrize("truncation", ["head", "tail", "head_tail"])
def test_truncation_cuts_the_text_and_not_the_template(decoder: Path, truncation: str) -> None:
    from pipeline.chat_template import read_chat_template
    from pipeline.chat_tokenizer import ChatTokenizer

    template = read_chat_template(decoder, DS)
    assert template is not None
    text = " ".join(WORDS)
    whole, cut = (
        ChatTokenizer(decoder, limit, truncation, template, system="s").encode([(text, None)])[0] for limit in (999, 40)
    )
    prefix = "<s>system: s</s><s>user: "
    tokenizer = AutoTokenizer.from_pretrained(decoder)
    prompt = tokenizer(f"{prefix}{text}</s><s>", add_special_tokens=False, return_offsets_mapping=True)
    assert whole.token_ids.tolist() == prompt["input_ids"]
    # The space before the text and its first word are one token: the template's, which stays.
    fixed = sum(start < len(prefix) for start, _ in prompt["offset_mapping"])
    before, content, after = np.split(whole.token_ids, [fixed, len(whole.token_ids) - 2])
    room = 40 - len(before) - len(after)
    halves = [*content[: room - room // 2], *content[-(room // 2) :]]
    kept = {"head": content[:room], "tail": content[-room:], "head_tail": halves}[truncation]
    assert cut.token_ids.tolist() == [*before, *kept, *after]
    assert cut.truncated_tokens == len(whole.token_ids) - 40


def test_a_text_without_the_template_has_the_tokenizers_own_tokens(tmp_path: Path, decoder: Path) -> None:
    put(tmp_path, prompts(4))
    run_here(home_of(tmp_path, decoder, {"max_new_tokens": 4, "chat": False, "stop": ["e"]}))
    tokenizer = AutoTokenizer.from_pretrained(decoder)
    for row, given in zip(output_of(tmp_path), prompts(4), strict=True):
        text, _, reason = expected_text(decoder, tokenizer(given["text"])["input_ids"], 4)
        assert row["text"] == text.partition("e")[0]
        assert row["finish_reason"] == ("stop_string" if "e" in text else reason)


@pytest.mark.parametrize("generate", [{"max_new_tokens": 8}, {**SAMPLED, "samples": 2}], ids=["greedy", "sampled"])
def test_workers_and_kills_change_no_byte(
    tmp_path: Path, decoder: Path, generate: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One, two and four workers, and a worker that is killed with -9 in the middle: the same files."""
    monkeypatch.setattr(planning, "SHARD_SLOT_TOKENS", 1 << 8)
    rows = prompts(40)
    for index, row in enumerate(rows):
        row["id"] = f"r{index // 2}"  # two rows each have one id, and draw alike
    put(tmp_path, rows)
    found = []
    for workers in (1, 2, 4, 0):
        home = home_of(tmp_path, decoder, generate, output={"uri": f"{tmp_path}/out-{workers}"})
        run = planned(home)
        if workers == 0:
            _killed_worker(home, run)
        context = home.context()
        for index in range(workers):
            steps.infer(context, run, index, workers)
        finished(home, run)
        files = Objects().list(f"{tmp_path}/out-{workers}/predictions/")
        found.append([Objects().get(uri) for uri in files])
    assert len(found[0]) == 1
    assert found[1:] == found[:1] * 3
    assert len(load_run(Objects(), run).shards) >= 4


def _killed_worker(home: JobHome, run: str) -> None:
    argv = ["-m", "pipeline", "step", "infer", "--job", str(home.file), "--ds", DS, "--run", run]
    process = subprocess.Popen([sys.executable, *argv], env=dict(home.environment))
    deadline = time.monotonic() + 120
    while not Objects().list(f"{run}/shards/"):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(60)


def test_samples_are_rows_of_the_output_and_one_row_of_the_input(tmp_path: Path, decoder: Path) -> None:
    put(tmp_path, prompts(6))
    report = run_here(home_of(tmp_path, decoder, {**SAMPLED, "samples": 3, "logit_bias": {str(EOS): -5}}))
    assert (report["rows"], report["predicted"]) == (6, 6)
    found = output_of(tmp_path)
    assert [(row["row_id"], row["sample"]) for row in found] == [(f"r{n}", k) for n in range(6) for k in range(3)]
    assert len({row["text"] for row in found}) > 6
    assert report["tokens"]["prompt_tokens"] == sum(row["prompt_tokens"] for row in found)
    other = run_here(home_of(tmp_path, decoder, {**SAMPLED, "samples": 3, "seed": 8, "logit_bias": {EOS: -5}}))
    assert other["fingerprint"] != report["fingerprint"]
    assert [row["text"] for row in output_of(tmp_path)] != [row["text"] for row in found]


def test_a_row_whose_logits_are_nan_is_a_reject_and_the_rest_goes_on(tmp_path: Path, decoder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    broken = tmp_path / "model"
    make_decoder(broken)
    model = AutoModelForCausalLM.from_pretrained(broken)
    poison = AutoTokenizer.from_pretrained(broken)("~", add_special_tokens=False)["input_ids"][0]
    with torch.no_grad():
        model.get_input_embeddings().weight[poison] = float("nan")
    model.save_pretrained(broken)
    rows = prompts(10)
    rows[4]["text"] = "~"
    put(tmp_path, rows)
    bias = {str(poison): -1e9}
    # The proof of an artifact takes the night's rows, among them the one that no artifact can predict.
    clean = home_of(
        tmp_path / "clean", broken, {"max_new_tokens": 4, "logit_bias": bias}, artifacts=str(tmp_path / "a")
    )
    put(tmp_path / "clean", [row for row in rows if row["text"] != "~"])
    run_here(clean)
    home = home_of(
        tmp_path, broken, {"max_new_tokens": 4, "logit_bias": bias}, reject_budget={"share": 0.2},
        artifacts=str(tmp_path / "a"),
    )  # fmt: skip
    report = run_here(home)
    assert report["reject_reasons"] == {"nan_logits": 1}
    assert [(row["source_row"], row["reason"]) for row in rejects_of(tmp_path)] == [(4, "nan_logits")]
    kept = [row["text"] for row in output_of(tmp_path)]
    assert kept == [row["text"] for row in output_of(tmp_path / "clean")]


MISTAKES = [
    ({"max_new_tokens": 100}, {}, "exceed the 128 positions"),
    ({"max_new_tokens": 4, "stop_token_ids": [9999]}, {}, "token 9999 is none of the model's 320"),
    ({"max_new_tokens": 4, "regex": "("}, {}, r"generate\.regex: the constraint cannot be used"),
    ({"max_new_tokens": 4, "json_schema": {"type": "strin"}}, {}, r"generate\.json_schema: "),
    ({"max_new_tokens": 4, "regex": "a+"}, {"target": "openvino"}, "has no constraint"),
    ({"max_new_tokens": 4, "no_repeat_ngram_size": 2}, {"target": "openvino"}, "has no no_repeat_ngram_size"),
]


@pytest.mark.parametrize(("generate", "fields", "message"), MISTAKES, ids=[message for _, _, message in MISTAKES])
def test_what_does_not_fit_the_model_is_an_error_before_anything_runs(
    tmp_path: Path, decoder: Path, generate: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    home = home_of(tmp_path, decoder, generate, **fields)
    with pytest.raises(JobError, match=message):
        steps.check(home.context())


def test_chats_need_a_chat_template(tmp_path: Path) -> None:
    model = make_decoder(tmp_path / "model")
    (model / "chat_template.jinja").unlink()
    home = home_of(tmp_path, model, {"max_new_tokens": 4}, input={"text": None, "messages": "chat"})
    with pytest.raises(JobError, match=r"input\.messages: model .* has no chat template"):
        steps.check(home.context())


@pytest.mark.parametrize("target", ["openvino", "openvino-slots"])
def test_the_openvino_engines_run_the_same_flow(tmp_path: Path, decoder: Path, target: str) -> None:
    put(tmp_path, prompts(8))
    report = run_here(home_of(tmp_path, decoder, {"max_new_tokens": 6}, target=target, shapes=["4x48"]))
    assert (report["predicted"], report["compilations_in_infer"]) == (8, 0)
    tokenizer = AutoTokenizer.from_pretrained(decoder)
    same = 0
    for row, given in zip(output_of(tmp_path), prompts(8), strict=True):
        chat = tokenizer.apply_chat_template([{"role": "user", "content": given["text"]}], add_generation_prompt=True)
        same += row["text"] == expected_text(decoder, chat, 6)[0]
        assert row["prompt_tokens"] == len(chat)
    assert same >= 7, "another kernel may decide a near tie otherwise"
    assert (report["tokens"]["occupancy"] is None) == (target == "openvino"), "GenAI's scheduler does not tell"
    assert published(Objects(), str(tmp_path))


@pytest.mark.parametrize("do_sample", [False, True])
def test_texts_follow_a_json_schema(tmp_path: Path, decoder: Path, do_sample: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"good": {"type": "boolean"}, "stars": {"enum": [1, 2, 3]}},
        "required": ["good", "stars"],
        "additionalProperties": False,
    }
    put(tmp_path, prompts(6))
    run_here(home_of(tmp_path, decoder, {"max_new_tokens": 40, "do_sample": do_sample, "json_schema": schema}))
    for row in output_of(tmp_path):
        found = json.loads(row["text"])
        assert isinstance(found["good"], bool)
        assert found["stars"] in (1, 2, 3)
        assert (len(found), row["finish_reason"]) == (2, "stop")


def test_pieces_of_a_shard_have_the_texts_of_the_whole(tmp_path: Path, decoder: Path) -> None:
    """What isolation executes in processes of their own, where a row has killed a worker."""
    put(tmp_path, prompts(20))
    home = home_of(tmp_path, decoder, {**SAMPLED, "samples": 2})
    run = planned(home)
    context, plan = home.context(), load_run(Objects(), run)
    for shard in plan.shards:
        middle = shard.rows // 3
        for start, stop in ((0, middle), (middle, shard.rows)):
            steps.piece(context, run, shard.index, start, stop)
    steps.piece(context, run, 0, 0, 0)  # the device alone
    steps.infer(context, run)
    for shard in plan.shards:
        middle = shard.rows // 3
        uris = [piece_object(run, shard.index, *part) for part in ((0, middle), (middle, shard.rows))]
        parts = [ShardResult.decode(Objects().get(uri)) for uri in uris]
        whole = ShardResult.decode(Objects().get(shard_object(run, shard.index)))
        assert ShardResult.joined(parts, whole.output.type).output.equals(whole.output)


def test_retried_rejects_join_the_samples_of_the_others(tmp_path: Path, decoder: Path) -> None:
    rows = prompts(8)
    rows[3]["text"] = "a movie " * 20
    put(tmp_path, rows)
    generate = {**SAMPLED, "samples": 2}
    first = run_here(home_of(tmp_path, decoder, generate, reject_budget={"share": 0.5}))
    assert first["reject_reasons"] == {"too_long": 1}
    before = output_of(tmp_path)
    home = home_of(tmp_path, decoder, generate, truncation="tail")
    context = home.context()
    taken = steps.snapshot(context, retry=True)
    steps.tokenize(context, taken["snapshot"], retry_of=taken["retry_of"])
    run = steps.plan(context, taken["snapshot"], retry_of=taken["retry_of"])["run"]
    report = finished(home, run)
    assert (report["rows"], report["predicted"], report["rejected"]) == (8, 8, 0)
    after = output_of(tmp_path)
    assert [(row["row_id"], row["sample"]) for row in after] == [(f"r{n}", k) for n in range(8) for k in range(2)]
    assert [row for row in after if row["row_id"] != "r3"] == before
    new = [row for row in after if row["row_id"] == "r3"]
    assert report["real_tokens"] == sum(row["token_count"] for row in after) // 2
    assert all(row["truncated_tokens"] > 0 for row in new)


def test_samples_land_in_iceberg_once(tmp_path: Path, decoder: Path) -> None:
    """The same rows as in plain Parquet, also when the night is started over."""
    put(tmp_path, [*prompts(6), {"id": "long", "text": "x" * 200, "group": "a"}])
    generate = {**SAMPLED, "samples": 2, "token_ids": True}
    budget = {"share": 0.5}
    run_here(home_of(tmp_path, decoder, generate, reject_budget=budget))
    plain = output_of(tmp_path)
    home = home_of(tmp_path / "berg", decoder, generate, reject_budget=budget, output=sqlite_catalog(tmp_path / "berg"))
    put(tmp_path / "berg", [*prompts(6), {"id": "long", "text": "x" * 200, "group": "a"}])
    for _ in range(2):
        assert run_here(home)["rejected"] == 1
        steps.forget(home.context())
    catalog = open_catalog(home.context())
    tables = [find_table(home.context(), catalog, name) for name in ("predictions", "rejects")]
    found, rejects = (table.scan().to_arrow().to_pylist() for table in tables if table is not None)
    own = ("row_id", "sample", "text", "token_ids", "finish_reason")
    expected = [tuple(map(str, (row[name] for name in own))) for row in plain]
    assert sorted(tuple(map(str, (row[name] for name in own))) for row in found) == sorted(expected)
    assert [row["reason"] for row in rejects] == ["too_long"]


def test_a_first_plan_is_made_from_measured_costs(tmp_path: Path, decoder: Path) -> None:
    """Of the number of new tokens that the job has: another number is another cost."""
    put(tmp_path, prompts(30))
    fields: dict[str, Any] = {"shapes": "auto", "max_graphs": 2, "artifacts": str(tmp_path / "artifacts")}
    for new_tokens in (4, 8):
        home = home_of(tmp_path / str(new_tokens), decoder, {"max_new_tokens": new_tokens}, **fields)
        put(tmp_path / str(new_tokens), prompts(30))
        context = home.context()
        taken = steps.snapshot(context)
        steps.tokenize(context, taken["snapshot"])
        run = steps.plan(context, taken["snapshot"])["run"]
        costs = job_toolchain(context, load_run(Objects(), run).model).costs()
        target = load_decoder_target("torch", new_tokens)
        assert sorted(map(str, costs.measured)) == sorted(map(str, decoder_probe_shapes(target, 48)))
        assert all(seconds > 0 for seconds in costs.measured.values())
    assert len(list((tmp_path / "artifacts" / "costs").iterdir())) == 2
    assert decoder_probe_shapes(load_decoder_target("openvino", 8), 48) == []
