"""How texts are generated: a causal language model goes on with each row's prompt, a shard's rows at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from compile.batches import TokenRow
from compile.errors import ModelError
from compile.generation.build import build_missing_decoders
from compile.generation.constraints import GrammarConstraint, GrammarTokens, json_schema_grammar, regex_grammar
from compile.generation.probe import probe_decoder_costs
from compile.generation.requests import TextRules
from compile.generation.sampling import Sampling
from compile.generation.static import as_generator
from compile.generation.stops import eos_token_ids, special_stops
from compile.model import ModelInfo, read_json, read_model
from compile.parity import Tolerance
from compile.shapes import Shape, ShapePlan
from compile.targets.decoders import DecoderTarget, load_decoder_target
from pipeline.batch_api.asks import Asks, RowAsks
from pipeline.batch_api.tokenizer import RequestTokenizer
from pipeline.chat_template import ChatTemplate, TemplateRefusalError, read_chat_template
from pipeline.chat_tokenizer import ChatTokenizer
from pipeline.context import Context
from pipeline.errors import JobError
from pipeline.execution import EngineMaker
from pipeline.generating import DecoderEngine, DrawIds
from pipeline.job import Job
from pipeline.job_generate import Generate as Settings
from pipeline.models import job_model
from pipeline.run_plan import RunPlan
from pipeline.sample_rows import sample_rows
from pipeline.tokenized import TokenBlock
from pipeline.tokenizer import RowTokenizer, Tokenizer, read_tokenizer
from pipeline.toolchain import Toolchain

PROBED_BYTES = 1 << 30
"""Weights of the largest model that is timed before its first plan."""


class Generate:
    """See pipeline.workloads.Workload."""

    def read_model(self, context: Context, folder: Path) -> ModelInfo:
        job = context.job
        model = read_model(folder, classifier=False)
        if job.max_length + job.new_tokens > model.max_positions:
            raise JobError(
                f"max_length: {job.max_length} tokens of prompt and generate.max_new_tokens, {job.new_tokens}, exceed "
                f"the {model.max_positions} positions of model {job.model.uri}; lower one of them"
            )
        sampling = sampling_of(job, folder, model)
        rules = TextRules(constraint=constraint_of(job, folder, model, sampling))
        lacking = self.target(job).unsupported(sampling, rules)
        if lacking:
            raise JobError(f"generate: {lacking}")
        neuron = job.neuron_settings
        if neuron is not None and neuron.on_device_sampling and _settings(job).log_probability:
            raise JobError("generate.log_probability: neuron.on_device_sampling tells none; leave one of them out")
        _chat_template(context, folder)
        return model

    def target(self, job: Job) -> DecoderTarget:
        return load_decoder_target(job.target, job.new_tokens, job.neuron_settings)

    def prompt_identity(self, context: Context) -> Any:
        settings = _settings(context.job)
        own: list[Any] = [settings.chat, settings.system, context.ds]  # a template may write the date
        if context.job.input.is_batch_api:  # what a line may ask for depends on all of them
            own += [context.job.target, settings.model_dump(mode="json")]
        return own

    def tokenizer(self, context: Context, model_dir: Path) -> RowTokenizer:
        job, template = context.job, _chat_template(context, model_dir)
        plain = Tokenizer(model_dir, job.max_length, job.truncation)
        chats = None
        if template is not None:
            lists = job.input.messages is not None or job.input.is_batch_api
            system = _settings(job).system
            chats = ChatTokenizer(model_dir, job.max_length, job.truncation, template, system=system, chats=lists)
        if job.input.is_batch_api:
            asks = asks_of(job, model_dir, job_model(context)[1])
            return RequestTokenizer(asks, chats, plain, job.max_length, job.truncation)
        return chats or plain

    def probes(self) -> bool:
        return True

    def probe(
        self, context: Context, toolchain: Toolchain, model_dir: Path, rows: Callable[[], Sequence[TokenRow]]
    ) -> None:
        """Only of models so small that this takes about a minute; others are planned from built-in estimates."""
        if weights_bytes(model_dir) > PROBED_BYTES:
            context.say("plan: this model is too large to be timed before a plan; its costs are estimates")
            return
        probe_decoder_costs(
            toolchain.store,
            self.target(context.job),
            toolchain.model,
            model_dir,
            toolchain.precision,
            context.job.max_length,
            lambda line: context.say(f"plan: measured {line}"),
        )

    def build(
        self,
        context: Context,
        plan: RunPlan,
        toolchain: Toolchain,
        model_dir: Path,
        shapes: ShapePlan,
        tolerance: Tolerance,
    ) -> None:
        build_missing_decoders(
            toolchain.store,
            self.target(plan.job),
            toolchain.model,
            model_dir,
            shapes,
            toolchain.precision,
            sample_rows(context, plan),
            tolerance,
            lambda line: context.say(f"compile: {line}"),
        )

    def engines(self, context: Context, plan: RunPlan) -> EngineMaker:
        model_dir, model = job_model(context)
        if model.digest != plan.model.digest:
            raise JobError(f"model.uri {plan.job.model.uri} is another model than this run was planned with; run again")
        sampling, tokenizer = sampling_of(plan.job, model_dir, model), read_tokenizer(model_dir)
        constraint = constraint_of(plan.job, model_dir, model, sampling)
        settings, draw_ids = _settings(plan.job), DrawIds(context, plan)
        keep, told = settings.token_ids, settings.log_probability
        asks = None
        if plan.job.input.is_batch_api:
            asks = RowAsks(context.objects, plan.tokens_uri, asks_of(plan.job, model_dir, model))

        def spell(token: int) -> str:
            text: str = tokenizer.decode([token], skip_special_tokens=False)
            return text

        def make(loaded: Any, shape: Shape) -> DecoderEngine:
            del shape
            decode = tokenizer.decode
            engine = as_generator(loaded)
            return DecoderEngine(engine, sampling, decode, draw_ids, keep, constraint, asks, spell, told)

        return make

    def tally(
        self, plan: RunPlan, shape: Shape, block: TokenBlock, output: pa.Array, executions: int
    ) -> dict[str, Any]:
        del executions
        samples = pc.fill_null(pc.list_value_length(output), plan.job.samples).to_numpy()  # null: a row at fault
        texts, prompt_tokens = int(samples.sum()), int((block.lengths * samples).sum())
        return {
            "batches": -(-texts // shape.batch),
            "texts": texts,
            # Of prompts alone; an engine that pads them counts its own.
            "slot_tokens": prompt_tokens,
            "real_tokens": prompt_tokens,
            "generated_tokens": pc.sum(output.flatten().field("output_tokens")).as_py() or 0,
        }


def weights_bytes(model_dir: Path) -> int:
    """Of the model's weight files."""
    return sum(path.stat().st_size for ending in ("safetensors", "bin") for path in model_dir.glob(f"*.{ending}"))


def _settings(job: Job) -> Settings:
    assert job.generate is not None
    return job.generate


def sampling_of(job: Job, model_dir: Path, model: ModelInfo) -> Sampling:
    """The job's settings with what the model adds: its end tokens, and which stop strings are tokens of it.

    Raises JobError, ModelError.
    """
    settings = _settings(job)
    strings, ids = special_stops(settings.stop, _special_tokens(model_dir))
    stop_token_ids = tuple(sorted({*settings.stop_token_ids, *ids}))
    for field, tokens in (("stop_token_ids", stop_token_ids), ("logit_bias", tuple(settings.logit_bias))):
        wrong = [token for token in tokens if not 0 <= token < model.vocab_size]
        if wrong:
            raise JobError(f"generate.{field}: token {wrong[0]} is none of the model's {model.vocab_size}")
    return Sampling(
        do_sample=settings.do_sample,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        repetition_penalty=settings.repetition_penalty,
        presence_penalty=settings.presence_penalty,
        frequency_penalty=settings.frequency_penalty,
        no_repeat_ngram_size=settings.no_repeat_ngram_size,
        sequence_bias=tuple(((token,), bias) for token, bias in sorted(settings.logit_bias.items())),
        max_new_tokens=settings.max_new_tokens,
        min_new_tokens=settings.min_new_tokens,
        eos_token_id=eos_token_ids(model_dir),
        stop_token_ids=stop_token_ids,
        stop_strings=strings,
        num_return_sequences=settings.samples,
        seed=settings.seed,
    )


def constraint_of(job: Job, model_dir: Path, model: ModelInfo, sampling: Sampling) -> GrammarConstraint | None:
    """What the job's texts must look like; None where they may be anything. Raises JobError, ModelError."""
    settings = _settings(job)
    field = "json_schema" if settings.json_schema is not None else "regex"
    try:
        if settings.json_schema is not None:
            grammar = json_schema_grammar(settings.json_schema)
        elif settings.regex is not None:
            grammar = regex_grammar(settings.regex)
        else:
            return None
        return GrammarConstraint(GrammarTokens(model_dir, model.vocab_size, sampling.eos_token_id), grammar)
    except ValueError as error:
        raise JobError(f"generate.{field}: {error}") from error


def asks_of(job: Job, model_dir: Path, model: ModelInfo) -> Asks:
    """What lines of a batch file may ask for over the job's settings. Raises JobError, ModelError."""
    settings, base = _settings(job), sampling_of(job, model_dir, model)
    return Asks(
        base=base,
        stop=settings.stop,
        stop_token_ids=settings.stop_token_ids,
        constraint=constraint_of(job, model_dir, model, base),
        special_tokens=_special_tokens(model_dir),
        vocab_size=model.vocab_size,
        served=settings.served_model_names,
        tokens=functools.cache(lambda: GrammarTokens(model_dir, model.vocab_size, base.eos_token_id)),
        unsupported=workload.target(job).unsupported,
        fixed_format=settings.json_schema is not None,
    )


def _special_tokens(model_dir: Path) -> dict[str, int]:
    if not (model_dir / "tokenizer.json").is_file():
        raise ModelError(f"{model_dir} has no tokenizer.json")
    added = read_json(model_dir / "tokenizer.json").get("added_tokens") or []
    return {str(token["content"]): int(token["id"]) for token in added if token.get("special")}


def _chat_template(context: Context, model_dir: Path) -> ChatTemplate | None:
    """The template that prompts are rendered with; None where a row's text is its prompt. Raises JobError."""
    settings, chats = _settings(context.job), context.job.input.messages is not None
    if settings.chat == "false":
        return None
    template = read_chat_template(model_dir, context.ds)
    if template is None:
        for field, asked in (
            ("generate.chat: true", settings.chat == "true"),
            ("input.messages", chats),
            ("generate.system", settings.system is not None),
        ):
            if asked:
                raise JobError(f"{field}: model {context.job.model.uri} has no chat template; use input.text alone")
        return None
    if settings.system is not None:
        trial = [{"role": "system", "content": settings.system}, {"role": "user", "content": "x"}]
        try:
            template.render(trial)
        except TemplateRefusalError as error:
            raise JobError(f"generate.system: {error}") from error
    return template


workload = Generate()
