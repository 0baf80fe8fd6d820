"""Batch files of OpenAI's Batch API through the flow: answers, errors, settings per line, the same bytes again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from batch_lines import HARMLESS, HELLO, UNNAMED, WRONG, chat, completion, vllm_example, without
from staging import sqlite_catalog
from tiny_decoders import CHAT, greedy_by_transformers, make_decoder
from transformers import AutoTokenizer

from compile.generation.sampling import Sampling
from jobs import DS, JobHome, jsonl, make_home
from pipeline import planning, steps
from pipeline.batch_api.answers import CODES, status_of
from pipeline.errors import JobError, RejectBudgetError
from pipeline.job import parse_job
from pipeline.layout import part_object
from pipeline.manifest import committed
from pipeline.models import job_model
from pipeline.objects import Objects
from pipeline.publish import load_summary
from pipeline.published import is_published
from pipeline.rejects import INFER_REASONS, REASONS
from pipeline.run_plan import load_run
from pipeline.tables import Staged, StagedPart, staged_names, table_format
from pipeline.tables.batch_files import WithBatchFiles
from pipeline.workloads.generate import asks_of, sampling_of

REFUSING = "{% for m in messages %}{% if m.role == 'refuse' %}{{ raise_exception('no') }}{% endif %}{% endfor %}" + CHAT
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "top_k": 20}


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGTHWISE_LOCK_DIR", str(tmp_path / "locks"))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama whose chat template refuses the role `refuse`, 128 positions."""
    folder = make_decoder(tmp_path_factory.mktemp("decoders") / "llama")
    (folder / "chat_template.jinja").write_text(REFUSING)
    return folder


def home_of(folder: Path, model: Path, generate: dict[str, Any] | None = None, **fields: Any) -> JobHome:
    """A job over batch files in `folder`/in."""
    defaults: dict[str, Any] = {
        "task": "generate", "target": "torch", "precision": "fp32", "shapes": ["4x64"], "max_length": 64,
        "truncation": "reject", "generate": {"max_new_tokens": 12, **(generate or {})}, "reject_budget": {"share": 1.0},
    }  # fmt: skip
    home = make_home(folder, model, str(folder), **(defaults | fields))
    job = yaml.safe_load(home.file.read_text())
    own = {name: value for name, value in job["input"].items() if name in ("uri", "split_rows")}
    job["input"] = {**own, "format": "openai_batch", **fields.get("input", {})}
    home.file.write_text(yaml.safe_dump(job))
    return home


def put(folder: Path, lines: list[dict[str, Any]], more: bytes = b"") -> None:
    half = len(lines) // 2
    for part, own in enumerate((lines[:half], lines[half:])):
        Objects().put(f"{folder}/in/ds={DS}/part-{part}.jsonl", jsonl(own) + more * part)


def planned(home: JobHome, retry: bool = False) -> str:
    context = home.context()
    steps.check(context)
    taken = steps.snapshot(context, retry=retry)
    steps.tokenize(context, taken["snapshot"], retry_of=taken["retry_of"])
    run: str = steps.plan(context, taken["snapshot"], retry_of=taken["retry_of"])["run"]
    steps.compile_artifacts(context, run)
    return run


def finished(home: JobHome, run: str, workers: int = 1) -> dict[str, Any]:
    context = home.context()
    for index in range(workers):
        steps.infer(context, run, index, workers)
    steps.publish(context, run)
    steps.commit(context, run)
    return steps.report(context, run)


def run_here(home: JobHome, workers: int = 1) -> dict[str, Any]:
    return finished(home, planned(home), workers)


def lines_of(folder: Path, name: str, out: str = "out") -> list[dict[str, Any]]:
    text = (folder / out / f"openai/ds={DS}/{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def answers_of(folder: Path, out: str = "out") -> dict[str, list[str]]:
    """custom_id -> texts."""
    bodies = {line["custom_id"]: line["response"]["body"] for line in lines_of(folder, "output", out)}
    return {
        name: [one["message"]["content"] if "message" in one else one["text"] for one in body["choices"]]
        for name, body in bodies.items()
    }


def table_of(folder: Path, table: str = "predictions") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / f"out/{table}/ds={DS}/part-00000.parquet").to_pylist()
    return rows


def test_the_example_of_vllms_documentation_round_trips(tmp_path: Path) -> None:
    """As a user runs it: the command, in processes, with up to 1,000 new tokens."""
    model = make_decoder(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1_100}))
    Objects().put(f"{tmp_path}/in/ds={DS}/batch.jsonl", jsonl(vllm_example("meta-llama/Meta-Llama-3-8B-Instruct")))
    report = home_of(tmp_path, model, {"max_new_tokens": 1_000}, workers=1).run()
    assert (report["rows"], report["predicted"], report["rejected"]) == (2, 2, 0)
    assert lines_of(tmp_path, "error") == []
    found = lines_of(tmp_path, "output")
    assert [line["custom_id"] for line in found] == ["request-1", "request-2"]
    tokenizer = AutoTokenizer.from_pretrained(model)
    for line, given, row in zip(found, vllm_example(""), table_of(tmp_path), strict=True):
        assert set(line) == {"id", "custom_id", "response", "error"}
        assert (line["error"], line["response"]["status_code"]) == (None, 200)
        body = line["response"]["body"]
        assert (body["object"], body["model"]) == ("chat.completion", "meta-llama/Meta-Llama-3-8B-Instruct")
        prompt = tokenizer.apply_chat_template(
            given["body"]["messages"], add_generation_prompt=True, return_tensors="np", return_dict=True
        )["input_ids"][0]
        tokens = greedy_by_transformers(model, prompt, 1_000)
        (choice,) = body["choices"]
        assert choice["message"] == {
            "role": "assistant",
            "content": tokenizer.decode(tokens, skip_special_tokens=True),
        }
        assert (choice["index"], choice["logprobs"]) == (0, None)
        assert choice["finish_reason"] == ("length" if len(tokens) == 1_000 else "stop")
        counts = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        assert body["usage"] == {**counts, "total_tokens": sum(counts.values())}
        assert (row["row_id"], row["text"]) == (line["custom_id"], choice["message"]["content"])
        assert body["system_fingerprint"] == row["fingerprint"] == report["fingerprint"]


def test_every_wrong_line_is_in_the_error_file_and_the_rest_is_answered(tmp_path: Path, decoder: Path) -> None:
    good = [chat("good-1"), completion("good-2"), chat("good-3", **HARMLESS)]
    wrong = [line for line, _, _ in WRONG]
    twice = [completion("good-2", "another"), {**chat("good-1"), "method": "PUT"}]
    unnamed = b"".join(line + b"\n" for line, _ in UNNAMED)
    put(tmp_path, [*good, *wrong, *twice], unnamed + b"\n")
    home = home_of(tmp_path, decoder, {"served_model_names": ["tiny/llama"]})
    report = run_here(home)
    rows = len(good) + len(wrong) + len(twice) + len(UNNAMED)
    assert (report["rows"], report["predicted"], report["rejected"]) == (rows, 3, rows - 3)
    assert set(answers_of(tmp_path)) == {"good-1", "good-2", "good-3"}
    assert answers_of(tmp_path)["good-1"] == answers_of(tmp_path)["good-3"]
    expected = [
        *((line["custom_id"], reason, param) for line, reason, param in WRONG),
        ("good-2", "duplicate_id", "custom_id"),
        ("good-1", "duplicate_id", "custom_id"),
        *((None, reason, "custom_id" if reason in ("missing_id", "lone_surrogate") else None) for _, reason in UNNAMED),
    ]
    errors = lines_of(tmp_path, "error")
    assert len(errors) == len(expected)
    for line, (name, reason, param), row in zip(errors, expected, table_of(tmp_path, "rejects"), strict=True):
        about = line["response"]["body"]["error"]
        assert (line["custom_id"], row["reason"]) == (name, reason), line
        assert about["param"] == param, line
        assert about["code"] == line["error"]["code"] == CODES[reason]
        assert about["type"] == "invalid_request_error"
        assert line["response"]["status_code"] == (404 if reason == "unknown_model" else 400)
        assert line["error"]["message"].startswith(row["message"])
        assert name is not None or f"part-1.jsonl, row {row['source_row']}" in about["message"]
    assert len({line["id"] for line in errors + lines_of(tmp_path, "output")}) == rows


def test_a_line_that_fails_while_it_is_generated_is_in_the_error_file(tmp_path: Path) -> None:
    """Its logits are NaN: the model's own fault, no request's, so its status says so and the others are answered."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    broken = make_decoder(tmp_path / "models/llama")
    model = AutoModelForCausalLM.from_pretrained(broken)
    poison = AutoTokenizer.from_pretrained(broken)("~", add_special_tokens=False)["input_ids"][0]
    with torch.no_grad():
        model.get_input_embeddings().weight[poison] = float("nan")
    model.save_pretrained(broken)
    never = {"logit_bias": {str(poison): -1e9}}
    sound, store = [completion("first", "a b c"), completion("last", "d e")], {"artifacts": f"{tmp_path}/artifacts"}
    clean = home_of(tmp_path / "clean", broken, never, **store)  # no artifact can be proven on the broken line
    put(tmp_path / "clean", sound)
    run_here(clean)
    put(tmp_path, [sound[0], completion("broken", "~"), sound[1]])
    report = run_here(home_of(tmp_path, broken, never, **store))
    assert (report["predicted"], report["reject_reasons"]) == (2, {"nan_logits": 1})
    assert answers_of(tmp_path) == answers_of(tmp_path / "clean")
    (line,) = lines_of(tmp_path, "error")
    (row,) = table_of(tmp_path, "rejects")
    assert (line["custom_id"], line["response"]["status_code"]) == ("broken", 500)
    assert line["response"]["body"]["error"]["type"] == "server_error"
    assert line["error"]["message"].startswith(row["message"])


def test_every_reject_reason_has_a_status() -> None:
    other_formats = {"malformed_csv", "missing_column", "null_text", "wrong_type"}
    assert set(CODES) == set(REASONS) - set(INFER_REASONS) - other_formats
    assert {status_of(reason) for reason in INFER_REASONS} == {500}
    assert {status_of(reason) for reason in CODES} == {400, 404}


PER_ROW: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_tokens": 3}, {"max_new_tokens": 3}),
    ({"max_tokens": 3, "max_completion_tokens": 5}, {"max_new_tokens": 5}),
    ({**SAMPLED, "seed": 5}, {**SAMPLED, "do_sample": True, "seed": 5}),
    ({**SAMPLED, "top_k": -1}, {**SAMPLED, "do_sample": True, "top_k": 0}),
    ({**SAMPLED, "n": 3}, {**SAMPLED, "do_sample": True, "samples": 3}),
    ({"temperature": 1.3, "min_p": 0.1}, {"temperature": 1.3, "do_sample": True, "min_p": 0.1}),
    ({"temperature": 0, "repetition_penalty": 1.7}, {"repetition_penalty": 1.7}),
    ({"presence_penalty": 1.9, "frequency_penalty": 1.1}, {"presence_penalty": 1.9, "frequency_penalty": 1.1}),
    ({"logit_bias": {"40": 100}}, {"logit_bias": {40: 100.0}}),
    ({"stop": "e"}, {"stop": ["e"]}),
    ({"stop": ["o", "<s>"], "min_tokens": 2}, {"stop": ["o", "<s>"], "min_new_tokens": 2}),
    ({"stop_token_ids": list(range(100, 300))}, {"stop_token_ids": list(range(100, 300))}),
    ({"guided_regex": "[ab]{3}"}, {"regex": "[ab]{3}"}),
    ({"guided_choice": ["yes (1)", "no"]}, {"regex": r"yes \(1\)|no"}),
    ({"structured_outputs": {"regex": "[ab]{3}"}}, {"regex": "[ab]{3}"}),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "boolean"}}}},
        {"json_schema": {"type": "boolean"}},
    ),
]


def test_a_line_with_settings_has_the_texts_of_a_job_with_them(tmp_path: Path, decoder: Path) -> None:
    """All kinds of settings side by side in one batch of slots, and each again as the settings of a whole job."""
    lines = [chat(f"r{number}", **asked) for number, (asked, _) in enumerate(PER_ROW)]
    put(tmp_path, lines)
    report = run_here(home_of(tmp_path, decoder))
    assert report["rejected"] == 0, table_of(tmp_path, "rejects")
    together = answers_of(tmp_path)
    rows = {row["row_id"]: row for row in table_of(tmp_path)}
    for number, (_, settings) in enumerate(PER_ROW):
        folder = tmp_path / f"job-{number}"
        text = {"id": f"r{number}", "chat": HELLO}
        Objects().put(f"{folder}/in/ds={DS}/a.jsonl", jsonl([text]))
        generate = {"max_new_tokens": 12, **settings}
        home = make_home(
            folder, decoder, str(folder), task="generate", target="torch", shapes=["4x64"], max_length=64,
            generate=generate, input={"text": None, "messages": "chat", "keep": {}},
        )  # fmt: skip
        run_here(home)
        own = table_of(folder)
        assert together[f"r{number}"] == [row["text"] for row in own], settings
        assert rows[f"r{number}"]["finish_reason"] == own[-1]["finish_reason"] or len(own) > 1
    assert len({texts[0] for texts in together.values()}) > 8


def test_workers_change_no_byte_of_any_file(tmp_path: Path, decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "SHARD_SLOT_TOKENS", 1 << 9)
    lines = [chat(f"r{n}", **SAMPLED, n=1 + n % 3, max_tokens=2 + n % 9) for n in range(16)]
    lines += [completion(f"c{n}", f"a {'good ' * n}movie", temperature=n % 2) for n in range(8)]
    lines[20]["body"]["n"] = 0
    put(tmp_path, [*lines, lines[3]])
    found = []
    for workers in (1, 2):
        home = home_of(tmp_path, decoder, output={"uri": f"{tmp_path}/out-{workers}"}, input={"split_rows": 5})
        report = run_here(home, workers)
        assert (report["predicted"], report["rejected"]) == (23, 2)
        out = f"{tmp_path}/out-{workers}"
        tables = ("predictions", "rejects", "openai")
        uris = [uri for table in tables for uri in Objects().list(f"{out}/{table}/")]
        found.append({uri.removeprefix(out): Objects().get(uri) for uri in uris})
    assert len(found[0]) == 4
    assert found[0] == found[1]
    order = [line["custom_id"] for line in lines_of(tmp_path, "output", "out-1")]
    assert order == [line["custom_id"] for line in lines if line is not lines[20]]


def test_what_a_line_leaves_out_is_the_jobs(tmp_path: Path, decoder: Path) -> None:
    """`stop` and `stop_token_ids` are replaced each by itself, though special tokens among stops become token ids."""
    generate = {
        "stop": ["x", "<pad>"], "stop_token_ids": [77], "min_new_tokens": 2, "do_sample": True, "samples": 2,
        "temperature": 0.5, "seed": 3, "logit_bias": {9: 1.0}, "top_p": 0.5, "top_k": 7,
    }  # fmt: skip
    context = home_of(tmp_path, decoder, generate).context()
    asks = asks_of(context.job, decoder, job_model(context)[1])

    def sampling(**asked: Any) -> Sampling:
        return asks.of({"url": "", "model": None, "asked": asked}).sampling

    base = sampling()
    assert (base.stop_strings, base.stop_token_ids) == (("x",), (0, 77))
    assert base == sampling_of(context.job, decoder, job_model(context)[1])
    assert sampling(stop=["y", "<s>"]) == replace(base, stop_strings=("y",), stop_token_ids=(1, 77))
    assert sampling(stop_token_ids=[80]) == replace(base, stop_token_ids=(0, 80))
    assert sampling(stop=[], stop_token_ids=[]) == replace(base, stop_strings=(), stop_token_ids=())
    assert sampling(n=1, temperature=0) == replace(base, do_sample=False, temperature=1.0, num_return_sequences=1)
    assert sampling(temperature=2, max_new_tokens=5) == replace(base, temperature=2, max_new_tokens=5)
    assert sampling(logit_bias={"8": -1, "07": 2}) == replace(base, sequence_bias=(((7,), 2), ((8,), -1)))
    assert sampling(ignore_eos=True) == replace(base, eos_token_id=())


def test_shards_are_cut_by_the_texts_that_lines_ask_for(
    tmp_path: Path, decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SHARD_SLOT_TOKENS", 64 * 76)
    found = {}
    for n in (1, 4, 16):
        put(tmp_path / str(n), [chat(f"r{row}", temperature=1, n=n) for row in range(64)])
        found[n] = len(load_run(Objects(), planned(home_of(tmp_path / str(n), decoder))).shards)
    assert found == {1: 1, 4: 4, 16: 16}


def test_a_seed_of_a_line_belongs_to_it_and_its_draws_to_its_custom_id(tmp_path: Path, decoder: Path) -> None:
    put(tmp_path, [chat(f"r{n}", temperature=1.5, seed=seed) for n, seed in enumerate((1, 1, 2))])
    run_here(home_of(tmp_path, decoder))
    first = answers_of(tmp_path)
    put(tmp_path, [chat("x"), chat("r1", temperature=1.5, seed=2), chat("r0", temperature=1.5, seed=1)])
    run_here(home_of(tmp_path, decoder))
    again = answers_of(tmp_path)
    assert again["r0"] == first["r0"]
    assert len({tuple(first[name]) for name in first} | {tuple(again["r1"])}) == 4


def test_retried_rejects_join_both_files(tmp_path: Path, decoder: Path) -> None:
    """What was answered keeps its lines; repeated ids stay rejects; rejects that work now take their places."""
    long = chat("long", [{"role": "user", "content": "a movie " * 30}], **SAMPLED, n=2)
    lines = [chat("a", **SAMPLED, n=2), long, {**chat("long"), "method": "PUT"}, chat("b"), chat("bad", n=0)]
    put(tmp_path, [*lines, long])
    report = run_here(home_of(tmp_path, decoder))
    assert report["reject_reasons"] == {"bad_request": 1, "duplicate_id": 2, "too_long": 1}
    before = {line["custom_id"]: line for line in lines_of(tmp_path, "output")}
    home = home_of(tmp_path, decoder, truncation="head")
    report = finished(home, planned(home, retry=True))
    assert (report["rows"], report["predicted"], report["rejected"]) == (6, 3, 3)
    after = lines_of(tmp_path, "output")
    assert [line["custom_id"] for line in after] == ["a", "long", "b"]
    assert {line["custom_id"]: line for line in after if line["custom_id"] != "long"} == before
    assert len(answers_of(tmp_path)["long"]) == 2
    errors = [(line["custom_id"], line["error"]["code"]) for line in lines_of(tmp_path, "error")]
    assert errors == [("long", "duplicate_custom_id"), ("bad", "invalid_value"), ("long", "duplicate_custom_id")]


def test_a_file_that_was_lost_or_changed_is_written_again(tmp_path: Path, decoder: Path) -> None:
    put(tmp_path, [chat("a"), chat("b", n=0)])
    home = home_of(tmp_path, decoder)
    first = run_here(home)
    files = [tmp_path / f"out/openai/ds={DS}/{name}.jsonl" for name in ("output", "error")]
    content = [file.read_bytes() for file in files]
    manifest = committed(home.context())
    assert manifest is not None
    assert [(file["name"], file["rows"]) for file in manifest.files["openai"]] == [
        ("output.jsonl", 1),
        ("error.jsonl", 1),
    ]
    files[0].unlink()
    files[1].write_text("{}\n")
    assert run_here(home)["fingerprint"] == first["fingerprint"]
    assert [file.read_bytes() for file in files] == content


def test_a_run_that_dies_between_the_tables_and_the_files_is_ended_by_the_next(tmp_path: Path, decoder: Path) -> None:
    for folder in (tmp_path / "killed", tmp_path / "calm"):
        put(folder, [chat("old")])
        run_here(home_of(folder, decoder))
        put(folder, [chat("a"), chat("b", n=0), chat("a"), chat("c", **SAMPLED, n=2)])
    home = home_of(tmp_path / "killed", decoder)
    context, run = home.context(), planned(home)
    steps.infer(context, run)
    steps.publish(context, run)
    tables = table_format(context)
    assert isinstance(tables, WithBatchFiles)
    plan = load_run(Objects(), run)
    summaries = [load_summary(context, plan, split) for split in range(plan.parts)]
    parts = {
        name: [StagedPart(part_object(run, name, one.split), one.files[name]["sha256"]) for one in summaries]
        for name in staged_names(plan.job)
    }
    tables.tables.replace(context, Staged(plan.fingerprint, parts, dict.fromkeys(parts, 0)), tables.look(context))
    assert [line["custom_id"] for line in lines_of(tmp_path / "killed", "output")] == ["old"]
    assert not is_published(context, plan)
    finished(home, run)
    run_here(home_of(tmp_path / "calm", decoder))
    for name in ("output", "error"):
        lines = [lines_of(tmp_path / folder, name) for folder in ("killed", "calm")]
        assert [without(line, "id", "response") for line in lines[0]] == [
            without(line, "id", "response") for line in lines[1]
        ]
    assert answers_of(tmp_path / "killed") == answers_of(tmp_path / "calm")
    assert set(answers_of(tmp_path / "killed")) == {"a", "c"}
    left = {uri.removeprefix(run).split("/")[1] for uri in Objects().list(f"{run}/")}
    assert left == {"plan.json", "events"}


def test_beside_iceberg_tables_the_files_are_the_same(tmp_path: Path, decoder: Path) -> None:
    lines = [chat("a", **SAMPLED, n=2), completion("b"), chat("c", n=0)]
    for folder in (tmp_path / "plain", tmp_path / "iceberg"):
        put(folder, lines)
    run_here(home_of(tmp_path / "plain", decoder))
    home = home_of(tmp_path / "iceberg", decoder, output=sqlite_catalog(tmp_path))
    first = run_here(home)
    assert answers_of(tmp_path / "iceberg") == answers_of(tmp_path / "plain")
    assert [line["custom_id"] for line in lines_of(tmp_path / "iceberg", "error")] == ["c"]
    file = tmp_path / f"iceberg/out/openai/ds={DS}/output.jsonl"
    content = file.read_bytes()
    file.unlink()
    assert run_here(home)["fingerprint"] == first["fingerprint"]
    assert file.read_bytes() == content


def test_too_many_repeated_ids_stop_the_run_before_it_generates(tmp_path: Path, decoder: Path) -> None:
    put(tmp_path, [chat("a"), chat("b"), chat("a"), chat("c")])
    home = home_of(tmp_path, decoder, reject_budget={"share": 0.2})
    context = home.context()
    taken = steps.snapshot(context)
    steps.tokenize(context, taken["snapshot"])
    with pytest.raises(RejectBudgetError, match="duplicate_id"):
        steps.plan(context, taken["snapshot"])


def test_kept_columns_come_from_the_line(tmp_path: Path, decoder: Path) -> None:
    put(tmp_path, [chat("a", metadata={"topic": "x", "stars": "4"}), chat("b"), chat("c", metadata={"stars": "many"})])
    keep = {"topic": {"column": "body.metadata.topic"}, "stars": {"column": "body.metadata.stars", "type": "int32"}}
    report = run_here(home_of(tmp_path, decoder, input={"keep": keep}))
    assert [(row["row_id"], row["topic"], row["stars"]) for row in table_of(tmp_path)] == [
        ("a", "x", 4),
        ("b", None, None),
    ]
    assert report["reject_reasons"] == {"bad_kept_value": 1}
    assert [line["custom_id"] for line in lines_of(tmp_path, "error")] == ["c"]


def test_prompts_are_texts_token_ids_and_parts(tmp_path: Path, decoder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(decoder)
    ids = tokenizer("the quick brown fox")["input_ids"]
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    lines = [completion("text"), completion("list", ["the quick brown fox"]), completion("ids", ids)]
    lines += [completion("nested", [ids]), chat("parts", parts), chat("joined", [{"role": "user", "content": "a\nb"}])]
    lines.append(completion("long", list(range(70, 170))))
    put(tmp_path, lines)
    run_here(home_of(tmp_path, decoder, truncation="tail"))
    found = answers_of(tmp_path)
    assert found["text"] == found["list"] == found["ids"] == found["nested"]
    assert found["parts"] == found["joined"] != found["text"]
    own = {row["row_id"]: row for row in table_of(tmp_path)}
    assert (own["long"]["token_count"], own["long"]["truncated_tokens"]) == (64, 36)


def test_logprobs_are_the_models_own(tmp_path: Path, decoder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    asked = {"temperature": 1.4, "top_k": 5, "logit_bias": {"40": 5}, "max_tokens": 6}
    lines = [chat("chat", logprobs=True, top_logprobs=3, **asked), chat("alone", logprobs=True, **asked)]
    lines += [completion("text", logprobs=2, **asked), chat("silent", **asked)]
    put(tmp_path, lines)
    run_here(home_of(tmp_path, decoder, {"token_ids": True}))
    rows = {row["row_id"]: row for row in table_of(tmp_path)}
    bodies = {line["custom_id"]: line["response"]["body"] for line in lines_of(tmp_path, "output")}
    told = {name: body["choices"][0]["logprobs"] for name, body in bodies.items()}
    tokenizer, model = AutoTokenizer.from_pretrained(decoder), AutoModelForCausalLM.from_pretrained(decoder)
    prompt = tokenizer.apply_chat_template(HELLO, add_generation_prompt=True, return_dict=True)["input_ids"]
    for name, ids, top in (("chat", prompt, 3), ("text", tokenizer("the quick brown fox")["input_ids"], 2)):
        new = rows[name]["token_ids"]
        with torch.inference_mode():
            logits = model(torch.tensor([[*ids, *new]])).logits[0, len(ids) - 1 : -1].double()
        values, order = torch.log_softmax(logits, 1).topk(top)
        own = torch.log_softmax(logits, 1)[torch.arange(len(new)), torch.tensor(new)].tolist()
        spelled = [tokenizer.decode([token]) for token in new]
        best = [[tokenizer.decode([token]) for token in line] for line in order]
        if name == "text":
            assert (told[name]["tokens"], told[name]["text_offset"][0]) == (spelled, 0)
            assert told[name]["token_logprobs"] == pytest.approx(own, abs=1e-4)
            for line, text, texts in zip(told[name]["top_logprobs"], spelled, best, strict=True):
                assert set(line) == {text, *texts}
        else:
            content = told[name]["content"]
            assert [one["token"] for one in content] == spelled
            assert [one["logprob"] for one in content] == pytest.approx(own, abs=1e-4)
            assert [[one["token"] for one in line["top_logprobs"]] for line in content] == best
            assert [line["top_logprobs"][2]["logprob"] for line in content] == pytest.approx(
                values[:, 2].tolist(), abs=1e-4
            )
            assert [bytes(one["bytes"]).decode() for one in content] == spelled
    assert [one["top_logprobs"] for one in told["alone"]["content"]] == [[]] * 6
    assert told["silent"] is rows["silent"]["logprobs"] is None


def test_the_openvino_engine_takes_settings_per_line_and_refuses_what_it_lacks(tmp_path: Path, decoder: Path) -> None:
    lines = [chat("greedy", max_tokens=4), chat("drawn", **SAMPLED, n=2), chat("bias", logit_bias={"5": 1})]
    lines += [chat("regex", guided_regex="a+"), chat("stop", stop="e"), chat("presence", presence_penalty=2.0)]
    lines.append(chat("logprobs", logprobs=True))
    put(tmp_path, lines)
    report = run_here(home_of(tmp_path, decoder, target="openvino"))
    assert report["reject_reasons"] == {"unsupported_field": 3}
    assert [line["custom_id"] for line in lines_of(tmp_path, "error")] == ["bias", "regex", "logprobs"]
    rows = {row["row_id"]: row for row in table_of(tmp_path)}
    assert rows["greedy"]["output_tokens"] <= 4
    assert len(answers_of(tmp_path)["drawn"]) == 2
    assert "e" not in rows["stop"]["text"]


def test_an_empty_night_has_empty_files(tmp_path: Path, decoder: Path) -> None:
    run_here(home_of(tmp_path, decoder, input={"when_missing": "empty"}))
    assert (lines_of(tmp_path, "output"), lines_of(tmp_path, "error"), table_of(tmp_path)) == ([], [], [])


MISTAKES = [
    ({"input": {"text": "x"}}, "text: format openai_batch has its prompts in body"),
    ({"input": {"id": "x"}}, "id: format openai_batch"),
    ({"input": {"uri": "hf://a/b"}}, "openai_batch is JSON lines"),
    ({"generate": {"max_new_tokens": 4, "chat": False}}, "generate.chat: of format openai_batch"),
    ({"input": {"keep": {"url": "string"}}}, "'url' is an output column"),
    ({"task": "classify", "generate": None}, "openai_batch is only for task: generate"),
    ({"input": {"format": "jsonl", "text": "x"}, "generate": {"max_new_tokens": 4, "served_model_names": ["a"]}},
     "served_model_names: only for"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_job_that_mixes_it_with_other_formats_is_an_error(fields: dict[str, Any], message: str) -> None:
    job = {
        "name": "x", "model": {"uri": "m"}, "task": "generate", "target": "torch", "output": {"uri": "out"},
        "generate": {"max_new_tokens": 4}, "input": {"uri": "in/", "format": "openai_batch"},
    }  # fmt: skip
    given = {name: {**job[name], **value} if name == "input" else value for name, value in fields.items()}  # type: ignore[dict-item]
    with pytest.raises(JobError, match=message):
        parse_job({name: value for name, value in {**job, **given}.items() if value is not None}, "test")
