"""What a job file may say, and that every mistake names file, field, value and the valid choices."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from compile.shapes import Shape
from pipeline.errors import JobError
from pipeline.job import Job, load_job, parse_job

MINIMAL: dict[str, Any] = {
    "name": "reviews",
    "model": {"uri": "models/m"},
    "input": {"uri": "in/ds={ds}/", "text": "text"},
    "output": {"uri": "out"},
}
TOP_LEVEL_KEYS = (
    "name, description, schedule, timezone, start_date, queue, compile_queue, task, generate, target, precision, "
    "neuron, model, input, shapes, max_graphs, max_memory_mb, max_compile_seconds, "
    "max_length, truncation, reject_budget, workers, compile, parity, replan, amortise_nights, artifacts, output, "
    "price_per_hour"
)
TYPES = "'string', 'bool', 'int32', 'int64', 'float', 'double', 'date' or 'timestamp'"
CRON = (
    "is not a cron expression; write five fields (minute, hour, day of month, month, day of week), "
    "for example '0 2 * * *', or one of @hourly, @daily, @weekly, @monthly, @yearly"
)
KEEP_NAME = (
    "an output column's name is letters, digits and _, does not start with __, and differs from the others by more "
    "than case; name it {column: ..., type: ...}"
)
ICEBERG = {"uri": "o", "table": "iceberg"}
TEMPLATE = "write {column}, without format or index; {{ and }} are literal braces"


def job_with(**changes: Any) -> dict[str, Any]:
    return {**MINIMAL, **changes}


def input_with(**changes: Any) -> dict[str, Any]:
    return job_with(input={**MINIMAL["input"], **changes})


MISTAKES: list[tuple[dict[str, Any], str]] = [
    (job_with(modle="m"), f"modle: unknown key; valid keys here: {TOP_LEVEL_KEYS}"),
    (job_with(model={"uri": "m", "rev": "1"}), "model.rev: unknown key; valid keys here: uri, revision"),
    (
        input_with(column="t"),
        "input.column: unknown key; valid keys here: uri, format, split, config, revision, text, template, messages, "
        "pair, id, label, keep, when_missing, split_rows, split_mb",
    ),
    (input_with(revision="main"), "input: revision: only for a hub dataset (uri: hf://org/name); remove it"),
    (
        input_with(keep={"a": {"column": "a", "kind": "date"}}),
        "input.keep.a.kind: unknown key; valid keys here: column, type",
    ),
    (
        job_with(output={"uri": "o", "format": "x"}),
        "output.format: unknown key; valid keys here: uri, all_scores, table, catalog, grace_hours",
    ),
    (
        job_with(output={"uri": "o", "table": "iceberg"}),
        "output: table: iceberg and catalog: {name: ...} belong together; give both or neither",
    ),
    (
        job_with(output={"uri": "o", "catalog": {"name": "lake"}}),
        "output: table: iceberg and catalog: {name: ...} belong together; give both or neither",
    ),
    (
        job_with(output={"uri": "o", "table": "iceberg", "catalog": {"name": "lake", "url": "x"}}),
        "output.catalog.url: unknown key; valid keys here: name, type, namespace, properties",
    ),
    (
        job_with(output=ICEBERG | {"catalog": {"name": "my-lake", "properties": {"s3.secret-access-key": "x"}}}),
        "output.catalog: properties.s3.secret-access-key: no secrets in a job file; set "
        "PYICEBERG_CATALOG__MY_LAKE__S3__SECRET_ACCESS_KEY in the environment",
    ),
    (
        job_with(output=ICEBERG | {"catalog": {"name": "lake", "properties": {"uri": "postgresql://me:pw@host/db"}}}),
        "output.catalog: properties.uri: no secrets in a job file; set PYICEBERG_CATALOG__LAKE__URI in the environment",
    ),
    (
        job_with(output=ICEBERG | {"catalog": {"name": "My Lake"}}),
        "output.catalog.name: String should match pattern '^[a-z][a-z0-9-]*$' (got 'My Lake')",
    ),
    (
        job_with(output={"uri": "o", "grace_hours": -1}),
        "output.grace_hours: Input should be greater than or equal to 0 (got -1)",
    ),
    (job_with(reject_budget={"percent": 1}), "reject_budget.percent: unknown key; valid keys here: rows, share"),
    ({key: value for key, value in MINIMAL.items() if key != "name"}, "name: is required"),
    (job_with(model={}), "model.uri: is required"),
    (job_with(input={"text": "t"}), "input.uri: is required"),
    (job_with(name="two words"), "name: String should match pattern '^[A-Za-z0-9_.-]{1,200}$' (got 'two words')"),
    (job_with(name=None), "name: Input should be a valid string (got None)"),
    (job_with(schedule="daily"), f"schedule: 'daily' {CRON} (got 'daily')"),
    (job_with(schedule="0 24 * * *"), f"schedule: '0 24 * * *' {CRON} (got '0 24 * * *')"),
    (job_with(schedule=5), "schedule: Input should be a valid string (got 5)"),
    (
        job_with(timezone="Mars/North"),
        "timezone: unknown time zone 'Mars/North'; write an IANA name, for example UTC or Europe/Berlin "
        "(got 'Mars/North')",
    ),
    (
        job_with(start_date="soon"),
        "start_date: Input should be a valid date or datetime, input is too short (got 'soon')",
    ),
    (job_with(task="embed"), "task: Input should be 'classify' or 'generate' (got 'embed')"),
    (job_with(precision="int4"), "precision: Input should be 'auto', 'bf16', 'fp32' or 'int8' (got 'int4')"),
    (job_with(truncation="cut"), "truncation: Input should be 'reject', 'head', 'tail' or 'head_tail' (got 'cut')"),
    (job_with(compile="maybe"), "compile: Input should be 'auto' or 'never' (got 'maybe')"),
    (
        input_with(format="xls"),
        "input.format: Input should be 'auto', 'parquet', 'jsonl', 'csv', 'tsv', 'text', 'datasets' or 'openai_batch' "
        "(got 'xls')",
    ),
    (input_with(when_missing="skip"), "input.when_missing: Input should be 'fail' or 'empty' (got 'skip')"),
    (
        input_with(text=None),
        "input: give one of text (a column), template (several columns) and messages (a column of chats)",
    ),
    (
        input_with(template="{a}"),
        "input: give one of text (a column), template (several columns) and messages (a column of chats)",
    ),
    (
        input_with(text=None, template="plain"),
        "input: template: 'plain' names no column; write for example '{title}: {body}'",
    ),
    (input_with(text=None, template="{}"), f"input: template: '{{}}': {TEMPLATE}"),
    (input_with(text=None, template="{a:>9}"), f"input: template: '{{a:>9}}': {TEMPLATE}"),
    (input_with(text=None, template="{a!r}"), f"input: template: '{{a!r}}': {TEMPLATE}"),
    (
        input_with(text=None, template="{a"),
        f"input: template: '{{a': expected '}}' before end of string; {TEMPLATE}",
    ),
    (input_with(keep={"a": "int"}), f"input.keep.a.type: Input should be {TYPES} (got 'int')"),
    (input_with(keep=["a"]), "input.keep: Input should be a valid dictionary (got ['a'])"),
    (input_with(keep={"a b": "string"}), f"input: keep: 'a b': {KEEP_NAME}"),
    (input_with(keep={"__a": "string"}), f"input: keep: '__a': {KEEP_NAME}"),
    (input_with(keep={"a": "string", "A": "date"}), f"input: keep: ['a', 'A']: {KEEP_NAME}"),
    (
        input_with(keep={"Label": "string"}),
        "input: keep: 'Label' is an output column of its own; keep it under another name, for example "
        "keep: {my_Label: {column: Label, type: string}}",
    ),
    (job_with(shapes="big"), "shapes: write auto, or a list of shapes such as [16x128, 4x512] (got 'big')"),
    (job_with(shapes=[]), "shapes: write auto, or a list of shapes such as [16x128, 4x512] (got [])"),
    (job_with(shapes=["512"]), "shapes: '512' is not a shape; write BATCHxLENGTH, for example 16x128 (got ['512'])"),
    (
        job_with(shapes=[[True, 512]]),
        "shapes: '[True, 512]' is not a shape; write BATCHxLENGTH, for example 16x128 (got [[True, 512]])",
    ),
    (
        job_with(shapes=["0x512"]),
        "shapes: a shape needs a batch and a length of at least 1, not 0x512 (got ['0x512'])",
    ),
    (
        job_with(shapes=["4x512", "8x512"]),
        "shapes: two shapes have one length; keep one of them (got ['4x512', '8x512'])",
    ),
    (
        job_with(shapes=["16x128"]),
        "shapes: the longest has 128 tokens but max_length is 512; add a shape of that length or lower max_length",
    ),
    (job_with(max_graphs=0), "max_graphs: Input should be greater than or equal to 1 (got 0)"),
    (job_with(max_length=True), "max_length: Input should be a valid integer (got True)"),
    (input_with(split_rows=0), "input.split_rows: Input should be greater than or equal to 1 (got 0)"),
    (input_with(split_mb=0.5), "input.split_mb: Input should be a valid integer (got 0.5)"),
    (job_with(max_length=0), "max_length: Input should be greater than or equal to 1 (got 0)"),
    (job_with(workers=0), "workers: write auto (one per core) or a number from 1 to 1000 (got 0)"),
    (job_with(workers="all"), "workers: write auto (one per core) or a number from 1 to 1000 (got 'all')"),
    (
        job_with(reject_budget={"share": 1.5}),
        "reject_budget.share: Input should be less than or equal to 1 (got 1.5)",
    ),
    (
        job_with(reject_budget={"rows": -1}),
        "reject_budget.rows: Input should be greater than or equal to 0 (got -1)",
    ),
    (job_with(price_per_hour=-1), "price_per_hour: Input should be greater than or equal to 0 (got -1)"),
    (job_with(price_per_hour=float("inf")), "price_per_hour: Input should be a finite number (got inf)"),
]


@pytest.mark.parametrize(("data", "message"), MISTAKES, ids=[message[:50] for _, message in MISTAKES])
def test_a_mistake_names_file_field_value_and_choices(data: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError) as raised:
        parse_job(data, "jobs/x.yaml")
    assert str(raised.value) == f"jobs/x.yaml: {message}"


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(JobError) as raised:
        parse_job({"name": "x", "model": {"uri": "m"}, "task": "y", "output": {}}, "x.yaml")
    assert [line.split(": ")[1] for line in str(raised.value).splitlines()] == ["task", "input", "output.uri"]


@pytest.mark.parametrize(
    "schedule",
    ["0 2 * * *", "*/15 0-6,22 1,15 jan-mar MON-FRI", "59 23 31 12 7", "@daily", "0 0 * * sun,sat", "5/20 * * * *"],
)
def test_cron_expressions_that_are_valid(schedule: str) -> None:
    assert parse_job(job_with(schedule=schedule), "x").schedule == schedule


@pytest.mark.parametrize(
    "schedule",
    ["", "* * * *", "* * * * * *", "60 * * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "a b c d e", "*/0 * * * *",
     "1-2-3 * * * *", "1, * * * *", "/5 * * * *", "-1 * * * *", "@noon", "* * * * jan", "*/x * * * *"],
)  # fmt: skip
def test_cron_expressions_that_are_not(schedule: str) -> None:
    with pytest.raises(JobError, match="not a cron expression"):
        parse_job(job_with(schedule=schedule), "x")


FULL: dict[str, Any] = {
    **MINIMAL,
    "description": "every field",
    "schedule": "0 2 * * *",
    "timezone": "Europe/Berlin",
    "start_date": "2026-03-01",
    "queue": "neuron",
    "precision": "fp32",
    "model": {"uri": "org/name", "revision": "abc"},
    "input": {
        "uri": "s3://b/in/{ds}/*.jsonl", "format": "jsonl", "template": "{a.b}: {c d}", "pair": "p", "id": "i",
        "keep": {"x": "date", "y": {"column": "the y", "type": "int64"}}, "when_missing": "empty",
    },
    "shapes": ["4x512", [16, 128]],
    "max_graphs": 3,
    "truncation": "tail",
    "reject_budget": {"rows": 10, "share": 0.5},
    "workers": 2,
    "compile": "never",
    "artifacts": "s3://b/artifacts",
    "output": {"uri": "s3://b/out", "all_scores": True},
    "price_per_hour": 1.5,
}  # fmt: skip


@pytest.mark.parametrize("data", [MINIMAL, FULL, job_with(shapes="auto", workers="auto")])
def test_the_dump_of_a_job_is_the_same_job(data: dict[str, Any]) -> None:
    job = parse_job(data, "x")
    dumped = json.loads(json.dumps(job.model_dump(mode="json")))
    assert parse_job(dumped, "plan") == job


def test_values_are_understood() -> None:
    job = parse_job(FULL, "x")
    assert job.shapes == (Shape(length=128, batch=16), Shape(length=512, batch=4))
    assert job.start_date == datetime.date(2026, 3, 1)
    assert [(name, kept.column, kept.type) for name, kept in job.input.keep.items()] == [
        ("x", "x", "date"),
        ("y", "the y", "int64"),
    ]
    assert job.input.text_columns() == ("a.b", "c d", "p")
    assert parse_job(MINIMAL, "x").shapes == ()


@pytest.mark.parametrize(
    ("template", "texts", "rendered"),
    [
        ("{a}", ["x"], "x"),
        ("{a}: {b}!", ["{b}", "y"], "{b}: y!"),
        ("{{{a}}} {a}", ["1", "2"], "{1} 2"),
        ("{a.b} {c[0]} {0}", ["1", "2", "3"], "1 2 3"),
    ],
)
def test_a_template_is_filled_in_as_plain_text(template: str, texts: list[str], rendered: str) -> None:
    job = parse_job(job_with(input={"uri": "i", "template": template}), "x")
    assert len(job.input.template_columns()) == len(texts)
    assert job.input.render(texts) == rendered


def test_what_cannot_change_an_output_byte_is_not_an_output_field() -> None:
    plain = parse_job(MINIMAL, "x").output_fields()
    neutral = {"schedule": "@daily", "workers": 7, "price_per_hour": 2, "description": "d", "queue": "q"}
    assert parse_job(job_with(**neutral), "x").output_fields() == plain
    for change in ({"truncation": "head"}, {"max_length": 128}, {"output": {"uri": "out", "all_scores": True}}):
        assert parse_job(job_with(**change), "x").output_fields() != plain


def write_job(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text)
    return path


YAML = "name: x\nmodel: {uri: %s}\ninput: {uri: '%s', text: t}\noutput: {uri: %s}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nname: b\n", "key 'name' is given twice\n  in \"{path}\", line 2, column 1"),
        ("model:\n  uri: a\n  uri: b\n", "key 'uri' is given twice\n  in \"{path}\", line 3, column 3"),
        ("- a\n", "a job file is a mapping of fields"),
        ("", "a job file is a mapping of fields"),
        ("a: [", "not valid YAML"),
        ("? [a]\n: 1\n", "not valid YAML"),
        ("a: !!python/object/apply:os.getpid []", "not valid YAML"),
        (
            "name: x\nstart_date: 2026-13-45\n",
            'not valid YAML: month must be in 1..12\n  in "{path}", line 2, column 13',
        ),
        ("a: " + "[" * 3000, "not valid YAML"),
    ],
)
def test_files_that_are_no_job(tmp_path: Path, text: str, message: str) -> None:
    path = write_job(tmp_path, text)
    with pytest.raises(JobError) as raised:
        load_job(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert message.format(path=path) in str(raised.value)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"name: \xe9")
    for path, message in ((tmp_path / "none.yaml", "cannot be read"), (tmp_path, "cannot be read"), (latin, "UTF-8")):
        with pytest.raises(JobError, match=message):
            load_job(path)


@pytest.mark.parametrize(
    ("section", "uri", "message"),
    [
        ("input", "in/ds={date}/", "only {ds}"),
        ("input", "in/{ds}/{ds_nodash}/", "only {ds}"),
        ("input", "in/ds={{ ds }}/", "only {ds}"),
        ("input", "in/ds={{ds}}/", "only {ds}"),
        ("input", "in/{/", "only {ds}"),
        ("output", "out/{ds}", "every night has a partition"),
    ],
)
def test_nothing_else_in_braces_is_filled_in(section: str, uri: str, message: str) -> None:
    data = job_with()
    data[section] = {**data[section], "uri": uri}
    with pytest.raises(JobError) as raised:
        parse_job(data, "test")
    assert message in str(raised.value)


def test_yaml_merge_keys_work_and_may_override(tmp_path: Path) -> None:
    text = "name: x\nmodel: &m {uri: m, revision: a}\ninput: {uri: i, text: t}\noutput: {uri: o}\n"
    merged = load_job(
        write_job(tmp_path, text.replace("&m {uri: m, revision: a}", "{<<: {uri: m, revision: a}, uri: n}"))
    )
    assert (merged.model.uri, merged.model.revision) == ("n", "a")


def test_relative_paths_are_taken_from_the_job_files_folder(tmp_path: Path) -> None:
    (tmp_path / "models" / "m").mkdir(parents=True)
    job = load_job(write_job(tmp_path, YAML % ("models/m", "./data//../data/{ds}/", "jobs/../out/")))
    assert (job.model.uri, job.input.uri, job.output.uri) == (
        f"{tmp_path}/models/m",
        f"{tmp_path}/data/{{ds}}/",
        f"{tmp_path}/out",
    )


def test_uris_absolute_paths_and_hub_ids_stay(tmp_path: Path) -> None:
    job = load_job(write_job(tmp_path, YAML % ("org/name", "s3://b/in/", "s3://b/out/")))
    assert (job.model.uri, job.input.uri, job.output.uri) == ("org/name", "s3://b/in/", "s3://b/out")
    job = load_job(write_job(tmp_path, YAML % ("/models/m", "/data//x/*.csv", "/out")))
    assert (job.model.uri, job.input.uri, job.output.uri) == ("/models/m", "/data/x/*.csv", "/out")


def test_a_job_cannot_be_changed() -> None:
    job = parse_job(MINIMAL, "x")
    with pytest.raises(ValueError, match="frozen"):
        job.name = "y"
    assert isinstance(job, Job)


GENERATE = {"max_new_tokens": 8}
GENERATE_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"generate": None}, "generate: task generate needs it; write at least generate: {max_new_tokens: 128}"),
    ({"generate": {}}, "generate.max_new_tokens: is required"),
    ({"task": "classify"}, "generate: only for task: generate; remove it, or set the task"),
    ({"target": "onnxruntime"}, "target 'onnxruntime' cannot generate; choose one of: torch, openvino, openvino-slots"),
    ({"input": {"uri": "i/", "text": "t", "pair": "p"}}, "input.pair: only for task: classify; remove it"),
    ({"output": {"uri": "o", "all_scores": True}}, "output.all_scores: only for task: classify; remove it"),
    ({"generate": {**GENERATE, "samples": 2}}, "generate: samples: more than 1 needs do_sample: true"),
    ({"generate": {**GENERATE, "min_new_tokens": 9}}, "generate: min_new_tokens: 9 exceeds max_new_tokens, 8"),
    (
        {"generate": {**GENERATE, "regex": "a", "json_schema": {}}},
        "generate: regex: a text follows either a json_schema",
    ),
    ({"generate": {**GENERATE, "top_p": 0}}, "generate.top_p: Input should be greater than 0 (got 0)"),
    ({"generate": {**GENERATE, "beams": 2}}, "generate.beams: unknown key; valid keys here: max_new_tokens, min_new"),
    ({"generate": {**GENERATE, "chat": False, "system": "s"}}, "generate: system: a system prompt needs the model's"),
    (
        {"generate": {**GENERATE, "chat": False}, "input": {"uri": "i/", "messages": "m"}},
        "generate.chat: false leaves the chat template out, which input.messages needs",
    ),
    ({"input": {"uri": "i/", "text": "t", "keep": {"text": "string"}}}, "input.keep: 'text' is an output column of"),
]


@pytest.mark.parametrize(("changes", "message"), GENERATE_MISTAKES, ids=[text[:50] for _, text in GENERATE_MISTAKES])
def test_mistakes_of_generation_jobs(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError) as raised:
        parse_job({**MINIMAL, "task": "generate", "generate": GENERATE, **changes}, "x")
    assert str(raised.value).startswith(f"x: {message}")


def test_chats_are_for_generation_only() -> None:
    with pytest.raises(JobError, match=r"input\.messages: only for task: generate; use text or template"):
        parse_job(job_with(input={"uri": "i/", "messages": "m"}), "x")


def test_a_generation_job_survives_its_json() -> None:
    settings = {**GENERATE, "logit_bias": {7: -1.5}, "stop": ["a"], "chat": True}
    job = parse_job({**MINIMAL, "task": "generate", "generate": settings}, "x")
    assert parse_job(json.loads(json.dumps(job.model_dump(mode="json"))), "plan") == job
    assert job.output_fields()["generate"] == job.model_dump(mode="json")["generate"]
