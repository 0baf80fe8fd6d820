"""The job file: what a user writes, validated once. Errors name the file, field, value and valid choices."""

from __future__ import annotations

import datetime
import json
import os
import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from compile.neuron_settings import NeuronSettings
from compile.shapes import Shape
from compile.toolchains import decoder_module, target_module
from pipeline import job_values
from pipeline.errors import JobError
from pipeline.job_generate import BATCH_API_COLUMNS, GENERATED_COLUMNS, Generate
from pipeline.job_neuron import Neuron
from pipeline.job_output import Catalog, Output
from pipeline.job_yaml import read_yaml
from pipeline.splits import MAX_SPLIT_BYTES, MAX_SPLIT_ROWS

ColumnType = Literal["string", "bool", "int32", "int64", "float", "double", "date", "timestamp"]
Format = Literal["auto", "parquet", "jsonl", "csv", "tsv", "text", "datasets", "openai_batch"]
RESERVED_COLUMNS = (
    "label", "score", "labels", "scores", "row_id", "source_uri", "source_row", "token_count", "truncated_tokens",
    "shape", "artifact", "fingerprint", "ds",
)  # fmt: skip


_TEMPLATE_ADVICE = "write {column}, without format or index; {{ and }} are literal braces"


class _Strict(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(_Strict):
    """Where the weights, the config and the tokenizer are."""

    uri: str = Field(min_length=1, description="a local folder, s3://bucket/prefix or a hub id")
    revision: str | None = Field(None, description="hub revision")


class KeptColumn(_Strict):
    """An input column that is copied to the output, under a name and a declared type."""

    column: str = Field(min_length=1)
    type: ColumnType = "string"


def _kept(value: Any) -> Any:
    """`source: string` is short for `source: {column: source, type: string}`."""
    if isinstance(value, dict):
        return {name: {"column": name, "type": item} if isinstance(item, str) else item for name, item in value.items()}
    return value


class Input(_Strict):
    """The night's rows."""

    uri: Annotated[str, AfterValidator(job_values.only_ds_in_braces)] = Field(
        min_length=1, description="objects of one night: a prefix ending in /, an object or a glob; {ds}"
    )
    format: Format = "auto"
    split: str | None = Field(None, min_length=1, description="split of a saved DatasetDict or a hub dataset")
    config: str | None = Field(None, min_length=1, description="configuration of a hub dataset")
    revision: str | None = Field(None, min_length=1, description="revision of a hub dataset: a commit, tag or branch")
    text: str | None = Field(None, description="column that holds the text")
    template: str | None = Field(None, description="text made from several columns, for example '{title}: {body}'")
    messages: str | None = Field(None, description="column that holds a chat: a list of {role, content}, or its JSON")
    pair: str | None = Field(None, description="column that holds the second text of a pair")
    id: str | None = Field(None, description="column that identifies a row; without it row_id is uri#row")
    label: str | None = Field(None, description="column with the true label, where known: gates int8 by accuracy")
    keep: Annotated[dict[str, KeptColumn], BeforeValidator(_kept)] = Field(default_factory=dict)
    when_missing: Literal["fail", "empty"] = "fail"
    split_rows: int = Field(
        MAX_SPLIT_ROWS, strict=True, ge=1, description="most rows of a split; about, of plain lines"
    )
    split_mb: int = Field(MAX_SPLIT_BYTES >> 20, strict=True, ge=1, description="most uncompressed MiB of a split")

    @property
    def split_bytes(self) -> int:
        return self.split_mb << 20

    @model_validator(mode="after")
    def _check(self) -> Input:
        if self.is_batch_api:
            self._check_batch_api()
        elif sum(value is not None for value in (self.text, self.template, self.messages)) != 1:
            raise ValueError("give one of text (a column), template (several columns) and messages (a column of chats)")
        bad = [name for name in self.keep if not re.fullmatch(r"(?!__)[A-Za-z_][A-Za-z0-9_]*", name)]
        if bad or len({name.lower() for name in self.keep}) != len(self.keep):
            raise ValueError(
                f"keep: {bad[0] if bad else list(self.keep)!r}: an output column's name is letters, digits and _, does "
                "not start with __, and differs from the others by more than case; name it {column: ..., type: ...}"
            )
        if not self.uri.startswith("hf://") and (self.config or self.revision):
            field = "config" if self.config else "revision"
            raise ValueError(f"{field}: only for a hub dataset (uri: hf://org/name); remove it")
        taken = [name for name in self.keep if name.lower() in RESERVED_COLUMNS]
        if taken:
            raise ValueError(
                f"keep: {taken[0]!r} is an output column of its own; keep it under another name, "
                f"for example keep: {{my_{taken[0]}: {{column: {taken[0]}, type: string}}}}"
            )
        if self.template is not None:
            self.template_columns()
        return self

    @property
    def is_batch_api(self) -> bool:
        """Whether rows are requests of OpenAI's Batch API, which say themselves what is asked."""
        return self.format == "openai_batch"

    def _check_batch_api(self) -> None:
        for name in ("text", "template", "messages", "pair", "id", "label"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: format openai_batch has its prompts in body and its id in custom_id; remove")
        if self.uri.startswith("hf://"):
            raise ValueError("format: openai_batch is JSON lines, not a hub dataset")

    def template_columns(self) -> tuple[str, ...]:
        """Columns that the template names. Raises ValueError for a template that is not plain `{column}` text."""
        columns = [name for _, name in self._template_parts() if name is not None]
        if self.template is not None and not columns:
            raise ValueError(f"template: {self.template!r} names no column; write for example '{{title}}: {{body}}'")
        return tuple(columns)

    def render(self, texts: Sequence[str]) -> str:
        """The template with one text for each of `template_columns()`."""
        values = iter(texts)
        return "".join(plain + (next(values) if name is not None else "") for plain, name in self._template_parts())

    def _template_parts(self) -> list[tuple[str, str | None]]:
        """Literal text and the column that follows it. Filled in by `render`: str.format would read '.' and '['."""
        try:
            parsed = list(string.Formatter().parse(self.template or ""))
        except ValueError as error:
            raise ValueError(f"template: {self.template!r}: {error}; {_TEMPLATE_ADVICE}") from error
        if any(name == "" or spec or conversion for _, name, spec, conversion in parsed):
            raise ValueError(f"template: {self.template!r}: {_TEMPLATE_ADVICE}")
        return [(plain, name) for plain, name, _, _ in parsed]

    def all_columns(self) -> list[str]:
        """Every column that the job names, each once: a file with a schema must have them all."""
        named = [self.id, *(kept.column for kept in self.keep.values()), self.label]
        return list(dict.fromkeys([*self.text_columns(), *(column for column in named if column)]))

    def text_columns(self) -> tuple[str, ...]:
        """Columns a row's text is made from, the pair's column last."""
        one = self.text or self.messages
        first = (one,) if one is not None else self.template_columns()
        return (*first, self.pair) if self.pair is not None else first


class RejectBudget(_Strict):
    """A run with more rejects than either limit fails before it publishes."""

    rows: int | None = Field(None, strict=True, ge=0)
    share: float = Field(0.01, strict=True, ge=0, le=1)


class Parity(_Strict):
    """How far an artifact may be from fp32 PyTorch; what is not given is the default of the precision."""

    max_abs_logit: float | None = Field(None, gt=0)
    mean_abs_logit: float | None = Field(None, gt=0)
    max_label_flips: float | None = Field(None, ge=0, le=1)
    max_accuracy_drop: float | None = Field(None, ge=0, le=1, description="on rows with input.label")


class Job(_Strict):
    """One job = one DAG. `model_dump()` of it is what a run plan records."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,200}$", description="also the DAG id")
    description: str = ""
    schedule: Annotated[str, AfterValidator(job_values.cron)] | None = Field(
        None, description="cron; none: only by hand"
    )
    timezone: Annotated[str, AfterValidator(job_values.timezone)] = "UTC"
    start_date: datetime.date = datetime.date(2026, 1, 1)
    queue: str | None = Field(None, description="Airflow queue of the infer tasks")
    compile_queue: str | None = Field(None, description="Airflow queue of the compile tasks; default: queue")
    task: Literal["classify", "generate"] = "classify"
    generate: Generate | None = Field(None, description="how texts are made; of task generate")
    target: Annotated[str, AfterValidator(job_values.known_target)] = "openvino"
    precision: Literal["auto", "bf16", "fp32", "int8"] = "auto"
    neuron: Neuron | None = Field(None, description="what the Neuron toolchain is asked for; of target neuron")
    model: Model
    input: Input
    shapes: Annotated[tuple[Shape, ...], BeforeValidator(job_values.shapes)] = Field(
        (), description="auto, or [16x128, ...]"
    )
    max_graphs: int = Field(16, strict=True, ge=1, le=64, description="most shapes that shapes: auto may plan")
    max_memory_mb: int | None = Field(None, strict=True, ge=1, description="MiB that one graph may take, estimated")
    max_compile_seconds: float | None = Field(None, gt=0, allow_inf_nan=False, description="of all graphs of a plan")
    max_length: int = Field(512, strict=True, ge=1, description="tokens a row may have")
    truncation: Literal["reject", "head", "tail", "head_tail"] = "reject"
    reject_budget: RejectBudget = Field(default_factory=lambda: RejectBudget.model_validate({}))
    workers: Annotated[int | None, BeforeValidator(job_values.workers)] = Field(None, description="auto: one per core")
    compile: Literal["auto", "never"] = "auto"
    parity: Parity = Field(default_factory=lambda: Parity.model_validate({}))
    replan: Annotated[float | None, BeforeValidator(job_values.replan_share)] = Field(
        None, description="never, auto, or a share"
    )
    amortise_nights: int = Field(30, strict=True, ge=1, description="nights in which compiling is to pay off")
    artifacts: str | None = Field(None, description="artifact store; default <output.uri>/_lengthwise/artifacts")
    output: Output
    price_per_hour: float | None = Field(
        None, strict=True, ge=0, allow_inf_nan=False, description="of the whole machine, for the report's cost"
    )
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    @model_validator(mode="after")
    def _check(self) -> Job:
        if self.shapes and self.shapes[-1].length < self.max_length:
            raise ValueError(
                f"shapes: the longest has {self.shapes[-1].length} tokens but max_length is {self.max_length}; "
                f"add a shape of that length or lower max_length"
            )
        self._check_neuron()
        if self.task == "generate":
            self._check_generate()
            return self
        target_module(self.target)
        if self.generate is not None:
            raise ValueError("generate: only for task: generate; remove it, or set the task")
        if self.input.messages is not None:
            raise ValueError("input.messages: only for task: generate; use text or template")
        if self.input.is_batch_api:
            raise ValueError("input.format: openai_batch is only for task: generate")
        return self

    def _check_neuron(self) -> None:
        """Raises ValueError for settings of another target or task, and for those that contradict the precision."""
        if self.neuron is None:
            return
        if self.target != "neuron":
            raise ValueError("neuron: only for target: neuron; remove it, or set the target")
        foreign = self.neuron.of_decoders() if self.task == "classify" else []
        if foreign:
            raise ValueError(f"neuron.{foreign[0]}: only for task: generate; an encoder runs on one core; remove it")
        contradiction = self.neuron.settings().contradiction(self.precision)
        if contradiction:
            raise ValueError(f"neuron: {contradiction}")

    def _check_generate(self) -> None:
        """Raises ValueError for what belongs to other tasks, and for what this one lacks."""
        if self.generate is None:
            raise ValueError("generate: task generate needs it; write at least generate: {max_new_tokens: 128}")
        decoder_module(self.target)
        foreign = {
            "input.pair": self.input.pair, "input.label": self.input.label, "output.all_scores": self.output.all_scores,
        }  # fmt: skip
        for field, value in foreign.items():
            if value:
                raise ValueError(f"{field}: only for task: classify; remove it")
        if self.input.messages is not None and self.generate.chat == "false":
            raise ValueError("generate.chat: false leaves the chat template out, which input.messages needs")
        if self.input.is_batch_api and self.generate.chat != "auto":
            raise ValueError("generate.chat: of format openai_batch each line's url says whether it is a chat; remove")
        if self.generate.served_model_names and not self.input.is_batch_api:
            raise ValueError("generate.served_model_names: only for input.format: openai_batch; remove it")
        own = (*GENERATED_COLUMNS, *(BATCH_API_COLUMNS if self.input.is_batch_api else ()))
        own = (*own, "value") if self.generate.json_schema is not None else own
        taken = [name for name in self.input.keep if name.lower() in own]
        if taken:
            raise ValueError(
                f"input.keep: {taken[0]!r} is an output column of task generate; keep it under another name, "
                f"for example keep: {{my_{taken[0]}: {{column: {taken[0]}, type: string}}}}"
            )

    @property
    def new_tokens(self) -> int:
        """Tokens that a row may get beyond its `max_length`; 0 of tasks that make none."""
        return self.generate.max_new_tokens if self.generate else 0

    @property
    def neuron_settings(self) -> NeuronSettings | None:
        """What the target `neuron` is asked for; None with any other target."""
        if self.target != "neuron":
            return None
        return (self.neuron or Neuron.model_validate({})).settings()

    @property
    def samples(self) -> int:
        """Output rows of one input row, unless the row asks for another number."""
        return self.generate.samples if self.generate else 1

    def output_fields(self) -> dict[str, Any]:
        """The fields that can change an output byte. Not among them: schedule, workers, price, where things lie."""
        relevant = {"task", "target", "max_length", "truncation", "generate"}
        fields: dict[str, Any] = self.model_dump(mode="json", include=relevant)
        if self.generate is not None and self.generate.json_schema is not None:
            fields["generate"]["json_schema"] = json.dumps(self.generate.json_schema)  # the order of properties counts
        if self.neuron is not None:
            fields["neuron"] = self.neuron.output_fields()
        fields["input"] = self.input.model_dump(mode="json", exclude={"when_missing"})
        fields["all_scores"] = self.output.all_scores
        fields["table"] = self.output.table
        return fields

    @pydantic.field_serializer("shapes")
    def _shapes_json(self, value: tuple[Shape, ...]) -> list[str] | str:
        return [str(shape) for shape in value] or "auto"


def load_job(path: Path) -> Job:
    """The validated job; relative paths in it are taken from the job file's folder. Raises JobError."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise JobError(f"{path}: a job file is a mapping of fields; the first is name: ...")
    return _located(parse_job(data, str(path)), path.resolve().parent)


def parse_job(data: dict[str, Any], origin: str) -> Job:
    """Validate plain data. Raises JobError with one line per mistake."""
    try:
        return Job.model_validate(data)
    except pydantic.ValidationError as error:
        raise JobError("\n".join(f"{origin}: {_explain(item)}" for item in error.errors())) from error


def _located(job: Job, folder: Path) -> Job:
    def at(uri: str) -> str:
        # Without `..`, `./` and doubled slashes, which prefixes of listed names would not have.
        return uri if "://" in uri else os.path.normpath(folder / uri) + ("/" if uri.endswith("/") else "")

    within = f"{at(job.output.uri).rstrip('/')}/".startswith(at(job.input.uri).partition("*")[0])
    if within and "{ds}" not in job.input.uri:
        raise JobError(f"output.uri: {job.output.uri} lies within input.uri: the next night would read it")
    # A model may also be a hub id, which looks like a relative path: it is one only if the folder is there.
    local_model = job.model.uri.startswith(".") or (folder / job.model.uri).exists()
    update: dict[str, Any] = {
        "input": job.input.model_copy(update={"uri": at(job.input.uri)}),
        "output": job.output.model_copy(update={"uri": at(job.output.uri).rstrip("/")}),
        "artifacts": at(job.artifacts).rstrip("/") if job.artifacts else None,
    }
    if local_model:
        update["model"] = job.model.model_copy(update={"uri": at(job.model.uri)})
    return job.model_copy(update=update)


_SECTIONS: dict[str, type[pydantic.BaseModel]] = {
    "model": Model, "parity": Parity, "input": Input, "reject_budget": RejectBudget, "output": Output,
    "output.catalog": Catalog, "generate": Generate, "neuron": Neuron,
}  # fmt: skip


def _explain(item: Any) -> str:
    """One line for one pydantic error: field, what is wrong, the value, the choices."""
    path = [
        str(part) for part in item["loc"] if not (isinstance(part, str) and part.startswith(("literal[", "function-")))
    ]
    field = ".".join(path)
    value = item.get("input")
    if item["type"] == "extra_forbidden":
        owner = _SECTIONS.get(".".join(path[:-1]), KeptColumn if len(path) > 2 else Job)
        return f"{field}: unknown key; valid keys here: {', '.join(owner.model_fields)}"
    if item["type"] == "missing":
        return f"{field}: is required"
    text = item["msg"].removeprefix("Value error, ") + ("" if isinstance(value, dict) else f" (got {value!r})")
    return f"{field}: {text}" if field else text
