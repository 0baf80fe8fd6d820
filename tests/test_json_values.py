"""JSON texts as typed columns: which schemas have a type, what fits it, and the struct as other readers see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from staging import sqlite_catalog
from tiny_decoders import make_decoder

from jobs import DS, JobHome, jsonl, make_home
from pipeline import steps
from pipeline.digests import digest
from pipeline.json_values import parse_value, value_type
from pipeline.objects import Objects
from pipeline.tables.catalog import find_table, open_catalog

SCALARS = {
    "name": {"type": "string"}, "stars": {"type": "integer"}, "share": {"type": "number"}, "good": {"type": "boolean"},
}  # fmt: skip
SCALAR_STRUCT = pa.struct([("name", pa.string()), ("stars", pa.int64()), ("share", pa.float64()), ("good", pa.bool_())])


def schema_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


TYPES: list[tuple[dict[str, Any], pa.DataType | None]] = [
    (schema_of(**SCALARS), SCALAR_STRUCT),
    (schema_of(a={"enum": ["x", "y"]}), pa.struct([("a", pa.string())])),
    (schema_of(a={"enum": [1, 2, None]}), pa.struct([("a", pa.int64())])),
    (schema_of(a={"enum": [1, 2.5]}), pa.struct([("a", pa.float64())])),
    (schema_of(a={"const": True}), pa.struct([("a", pa.bool_())])),
    (schema_of(a={"type": ["integer", "null"]}), pa.struct([("a", pa.int64())])),
    (schema_of(a={"anyOf": [{"type": "string"}, {"type": "null"}]}), pa.struct([("a", pa.string())])),
    (schema_of(a={"type": "array", "items": {"type": "number"}}), pa.struct([("a", pa.list_(pa.float64()))])),
    (schema_of(a=schema_of(b={"type": "string"})), pa.struct([("a", pa.struct([("b", pa.string())]))])),
    (
        {**schema_of(a={"$ref": "#/$defs/K"}, b={"allOf": [{"$ref": "#/$defs/K"}]}), "$defs": {"K": {"enum": ["x"]}}},
        pa.struct([("a", pa.string()), ("b", pa.string())]),
    ),
    ({"$ref": "#/$defs/R", "$defs": {"R": schema_of(a={"type": "string"})}}, pa.struct([("a", pa.string())])),
    (schema_of(a={"enum": ["x", 1]}), None),
    (schema_of(a={"enum": [True, 1]}), None),
    (schema_of(a={"enum": [None]}), None),
    (schema_of(a={"type": ["integer", "string"]}), None),
    (schema_of(a={"anyOf": [{"type": "string"}, {"type": "integer"}]}), None),
    (schema_of(a={"type": "array"}), None),
    (schema_of(a={}), None),
    (schema_of(a=True), None),
    (schema_of(a={"$ref": "#/$defs/none"}), None),
    ({**schema_of(a={"$ref": "#"})}, None),
    (schema_of(**{"a b": {"type": "string"}}), None),
    (schema_of(a={"type": "string"}, A={"type": "string"}), None),
    ({"type": "object"}, None),
    ({"type": "array", "items": {"type": "string"}}, None),
    ({"type": "string"}, None),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "kind"), TYPES, ids=[json.dumps(schema)[:60] for schema, _ in TYPES])
def test_a_schema_has_this_type(schema: dict[str, Any], kind: pa.DataType | None) -> None:
    assert value_type(schema) == kind


VALUES: list[tuple[str, Any]] = [
    ('{"name":"x","stars":4,"share":0.5,"good":true}', {"name": "x", "stars": 4, "share": 0.5, "good": True}),
    ('{"stars":-9223372036854775808,"share":2}', {"name": None, "stars": -(1 << 63), "share": 2.0, "good": None}),
    ('{"stars":9223372036854775807,"more":1}', {"name": None, "stars": (1 << 63) - 1, "share": None, "good": None}),
    ('{"stars":4.0}', {"name": None, "stars": 4, "share": None, "good": None}),
    ('{"stars":9223372036854775808}', None),
    ('{"stars":1e999}', None),
    ('{"stars":4.5}', None),
    ('{"stars":true}', None),
    ('{"stars":"4"}', None),
    ('{"share":1e999}', None),
    (f'{{"share":{"9" * 400}}}', None),
    ('{"good":1}', None),
    ('{"name":1}', None),
    ('{"name":"x"', None),
    ("", None),
    ("null", None),
    ("[]", None),
    ("[" * 100_000, None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), VALUES, ids=[text[:40] or "empty" for text, _ in VALUES])
def test_a_text_is_this_value_or_none(text: str, value: Any) -> None:
    if value is None:
        with pytest.raises(ValueError, match=r"\w"):
            parse_value(text, SCALAR_STRUCT)
    else:
        found = parse_value(text, SCALAR_STRUCT)
        assert found == value
        assert pa.array([found], SCALAR_STRUCT).to_pylist() == [value]


REVIEW = {
    **schema_of(
        about={**schema_of(part={"enum": ["plot", None]}), "required": ["part"], "additionalProperties": False},
        good={"type": "boolean"},
        stars={"enum": [1, 2, 3]},
        tags={"type": "array", "items": {"enum": ["ab", "c"]}, "minItems": 1, "maxItems": 2},
    ),
    "required": ["about", "good", "stars", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decoder(tmp_path_factory.mktemp("decoders") / "llama")


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGTHWISE_LOCK_DIR", str(tmp_path / "locks"))


def home_of(folder: Path, model: Path, schema: dict[str, Any], **fields: Any) -> JobHome:
    words = ("good", "a bad movie", "the plot is thin", "paris", "a", "brown fox")
    rows = [{"id": f"r{number}", "text": text, "group": "a"} for number, text in enumerate(words)]
    Objects().put(f"{folder}/in/ds={DS}/a.jsonl", jsonl(rows))
    new_tokens = fields.pop("max_new_tokens", 60)
    generate = {"max_new_tokens": new_tokens, "do_sample": True, "temperature": 1.5, "json_schema": schema}
    defaults: dict[str, Any] = {"task": "generate", "target": "torch", "shapes": ["4x48"], "max_length": 48}
    return make_home(folder, model, str(folder), generate=generate, **(defaults | fields))


def run_here(home: JobHome) -> dict[str, Any]:
    context = home.context()
    steps.check(context)
    taken = steps.snapshot(context)
    steps.tokenize(context, taken["snapshot"])
    run = steps.plan(context, taken["snapshot"])["run"]
    steps.compile_artifacts(context, run)
    steps.infer(context, run)
    steps.publish(context, run)
    steps.commit(context, run)
    return steps.report(context, run)


def test_duckdb_reads_the_struct(tmp_path: Path, decoder: Path) -> None:
    report = run_here(home_of(tmp_path, decoder, REVIEW))
    assert (report["predicted"], report["rejected"]) == (6, 0)
    file = tmp_path / f"out/predictions/ds={DS}/part-00000.parquet"
    texts = [json.loads(text) for (text,) in duckdb.sql(f"SELECT text FROM '{file}'").fetchall()]
    assert [value for (value,) in duckdb.sql(f"SELECT value FROM '{file}'").fetchall()] == texts
    kind = duckdb.sql(f"SELECT typeof(value) FROM '{file}' LIMIT 1").fetchone()
    assert kind == ("STRUCT(about STRUCT(part VARCHAR), good BOOLEAN, stars BIGINT, tags VARCHAR[])",)
    stars = duckdb.sql(f"SELECT sum(value.stars), count(value.about.part) FROM '{file}'").fetchone()
    assert stars == (sum(text["stars"] for text in texts), sum(text["about"]["part"] is not None for text in texts))
    declared = json.loads((tmp_path / "out/_lengthwise/schema.json").read_text())["predictions"]["value"]
    assert declared == "struct<about: struct<part: string>, good: bool, stars: int64, tags: list<string>>"


def test_texts_that_are_no_value_are_rejects(tmp_path: Path, decoder: Path) -> None:
    """Cut by the length, and whole numbers of more digits than 64 bits hold."""
    cut = run_here(home_of(tmp_path / "cut", decoder, REVIEW, max_new_tokens=5, reject_budget={"share": 1.0}))
    assert cut["reject_reasons"] == {"bad_json": 6}
    empty = pq.read_table(tmp_path / f"cut/out/predictions/ds={DS}/part-00000.parquet")
    assert empty.num_rows == 0
    assert pa.types.is_struct(empty.schema.field("value").type)
    large = {**schema_of(n={"enum": [1 << 64, (1 << 64) + 1]}), "required": ["n"], "additionalProperties": False}
    report = run_here(home_of(tmp_path / "large", decoder, large, reject_budget={"share": 1.0}))
    assert report["reject_reasons"] == {"bad_json": 6}


def test_a_schema_that_is_not_flat_leaves_the_text_alone(tmp_path: Path, decoder: Path) -> None:
    run_here(home_of(tmp_path, decoder, {"type": "array", "items": {"enum": [1, "a"]}, "maxItems": 2}))
    table = pq.read_table(tmp_path / f"out/predictions/ds={DS}/part-00000.parquet")
    assert "value" not in table.column_names
    assert all(isinstance(json.loads(text), list) for text in table["text"].to_pylist())


def test_an_iceberg_table_has_the_struct_with_ids_for_its_fields(tmp_path: Path, decoder: Path) -> None:
    home = home_of(tmp_path, decoder, REVIEW, output=sqlite_catalog(tmp_path))
    for _ in range(2):  # a second night finds the table
        run_here(home)
    context = home.context()
    table = find_table(context, open_catalog(context), "predictions")
    assert table is not None
    rows = table.scan().to_arrow().to_pylist()
    assert [row["value"] for row in rows] == [json.loads(row["text"]) for row in rows]
    assert len(rows) == 6
    ids = [int(field) for field in table.schema().field_ids]
    assert len(set(ids)) == len(ids)


def test_the_order_of_properties_is_part_of_the_fingerprint(tmp_path: Path, decoder: Path) -> None:
    """It is the order in which they are written, and that of the struct."""
    job = home_of(tmp_path, decoder, REVIEW).context().job
    assert job.generate is not None
    other = {**REVIEW, "properties": dict(reversed(REVIEW["properties"].items()))}
    turned = job.model_copy(update={"generate": job.generate.model_copy(update={"json_schema": other})})
    assert digest(turned.output_fields()) != digest(job.output_fields())
