"""Decoder target `openvino`: OpenVINO GenAI's continuous batching on one CPU thread. Fast, with a scheduler of its own.

It batches whatever is waiting, so its matrix products have other sizes with other company: whether a row's tokens stay
the same is measured when an artifact is built, not promised. It makes its kernels when it loads.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from compile.compilations import record_compilation
from compile.errors import ArtifactError, CompileError, DeviceError, ModelError
from compile.generation.requests import Completion, Request, TextRules
from compile.generation.sampling import Sampling
from compile.generation.slots import SlotGrid, Work, check_work
from compile.generation.stops import finish_reason
from compile.model import read_json
from compile.shapes import Shape
from compile.targets import EncoderBatch
from compile.targets import openvino as encoder_target
from compile.targets.causal import SLOTS, attention_windows
from compile.targets.decoders import grid_of
from compile.targets.openvino import openvino_package
from compile.targets.openvino_causal import convert_causal

CONFIG = "config.json"
BLOCK = 32
"""Positions per block of GenAI's cache on CPU."""
BATCHED_TOKENS = 512
"""Most tokens, of prompts and running texts together, in one step. A tenth faster than 256; more gained nothing."""
CACHE_POSITIONS = 1 << 16
"""Positions of all texts together: of SmolLM2-135M in bf16 1.5 GB. Only those that texts really have cost time."""


@dataclass(frozen=True, slots=True)
class OpenVinoDecoderTarget:
    """See compile.targets.decoders.DecoderTarget. A shape's batch is how many texts run at once."""

    new_tokens: int
    name: str = "openvino"
    precisions: tuple[str, ...] = ("bf16", "fp32")
    calibrated: tuple[str, ...] = ()
    on_cpu: bool = True
    independent: bool = False

    def unavailable(self) -> str | None:
        if importlib.util.find_spec("openvino_genai") is None:
            return "the package openvino-genai is not installed; `pip install openvino-genai`"
        return encoder_target.target.unavailable()

    def default_precision(self) -> str:
        return encoder_target.target.default_precision()

    def supports(self, precision: str) -> str | None:
        if precision not in self.precisions:
            return f"openvino generates in: {', '.join(self.precisions)}; choose one of them, not {precision!r}"
        return encoder_target.target.supports(precision)

    def unsupported(self, sampling: Sampling, text: TextRules) -> str | None:
        return unsupported(sampling, text)

    def versions(self) -> dict[str, str]:
        return {
            **encoder_target.target.versions(),
            "openvino-genai": importlib.metadata.version("openvino-genai"),
        }

    def options(self, precision: str) -> dict[str, str]:
        settings = {**_properties(precision), "batched_tokens": BATCHED_TOKENS, "new_tokens": self.new_tokens}
        return {**{name: str(value) for name, value in settings.items()}, "graphs": "continuous batching"}

    def machine(self) -> str:
        return encoder_target.target.machine()

    def candidates(self, max_length: int) -> list[Shape]:
        """One: nothing is padded, empty slots cost nothing, and one engine keeps all rows of a worker together."""
        fitting = (slots for slots in SLOTS if slots * (max_length + self.new_tokens) <= CACHE_POSITIONS)
        return [Shape(length=max_length, batch=max(fitting, default=1))]

    def prepare(self, model_dir: Path, work_dir: Path, precision: str, calibration: Sequence[EncoderBatch]) -> Path:
        prepared = work_dir / "openvino-decoder"
        if (prepared / CONFIG).is_file():
            return prepared
        try:
            windows = {window for window in attention_windows(model_dir) if window is not None}
            if windows:
                raise CompileError(
                    f"openvino: {model_dir} has attention over the last {max(windows)} positions, which the conversion "
                    "for GenAI does not carry over; choose target openvino-slots"
                )
            convert_causal(model_dir, prepared)
        except ModelError as error:
            raise CompileError(f"openvino: {error}") from error
        shutil.copyfile(model_dir / CONFIG, prepared / CONFIG)
        return prepared

    def compile(self, prepared_dir: Path, shape: Shape, precision: str, out_dir: Path) -> None:
        for path in prepared_dir.iterdir():
            shutil.copyfile(path, out_dir / path.name)
        record_compilation()

    def load(self, artifact_dir: Path, shape: Shape, precision: str) -> OpenVinoEngine:
        openvino_package()
        grid = grid_of(shape, self.new_tokens)
        try:
            import openvino_genai

            config = read_json(artifact_dir / CONFIG)
            scheduler = openvino_genai.SchedulerConfig()
            scheduler.max_num_seqs = grid.slots
            scheduler.max_num_batched_tokens = max(BATCHED_TOKENS, grid.slots)
            # Room for all texts at their full length: none is ever put aside and computed again.
            scheduler.num_kv_blocks = grid.slots * (-(-grid.positions // BLOCK) + 1)
            scheduler.dynamic_split_fuse = True
            scheduler.enable_prefix_caching = False
            pipeline = openvino_genai.ContinuousBatchingPipeline(
                str(artifact_dir), scheduler, "CPU", _properties(precision)
            )
        except (RuntimeError, ModelError) as error:
            raise ArtifactError(f"openvino: {shape} {precision}: {error}") from error
        return OpenVinoEngine(grid, pipeline, int(config["vocab_size"]))


def _properties(precision: str) -> dict[str, Any]:
    """One stream on one unpinned thread; keys and values kept as they were computed, where the default is 8 bits."""
    kept = {"fp32": "f32", "bf16": "bf16"}[precision]
    return {
        "INFERENCE_PRECISION_HINT": kept,
        "KV_CACHE_PRECISION": kept,
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": 1,
        "ENABLE_CPU_PINNING": False,
    }


def unsupported(sampling: Sampling, text: TextRules) -> str | None:
    """Which setting GenAI does not have, in a sentence; None when it has all."""
    for name, asked in (
        ("no_repeat_ngram_size", sampling.no_repeat_ngram_size > 0),
        ("sequence_bias", bool(sampling.sequence_bias)),
        ("constraint", text.constraint is not None),
        ("logprobs", sampling.logprobs is not None),  # it tells those of the distribution that was drawn from
    ):
        if asked:
            return f"the openvino engine has no {name}; choose target openvino-slots, or leave it out"
    return None


@dataclass(slots=True)
class _Running:
    """One request in GenAI's hands."""

    request: Request
    sampling: Sampling
    limit: int
    handle: Any
    log_probability: float
    """NaN where nobody asks for it."""
    token_ids: list[int] = field(default_factory=list)
    first_step: int = 0
    doubt: int | None = None
    """How many tokens were there before one that GenAI may have taken from NaN; see `_doubtful`."""


class OpenVinoEngine:
    """See compile.targets.decoders.Generator. `log_probability` is that of the distribution that was drawn from."""

    def __init__(self, grid: SlotGrid, pipeline: Any, vocab_size: int) -> None:
        self.grid = grid
        self._pipeline = pipeline
        self._vocab_size = vocab_size
        self._count = 0

    def generate(self, requests: Sequence[Request], sampling: Sampling, text: TextRules) -> Iterator[Completion]:
        """As the Protocol says; ValueError also for settings that GenAI lacks, see `unsupported`."""
        asked = [(request.settings(sampling), request.rules(text)) for request in requests if request.asked]
        for problem in (unsupported(*settings) for settings in [(sampling, text), *asked]):
            if problem:
                raise ValueError(problem)
        limits = [request.limit(sampling) for request in requests]
        for index, (request, limit) in enumerate(zip(requests, limits, strict=True)):
            check_work(index, Work(len(request.token_ids), limit), self.grid)
        return self._run(requests, limits, sampling, text)

    def _run(
        self, requests: Sequence[Request], limits: Sequence[int], sampling: Sampling, text: TextRules
    ) -> Iterator[Completion]:
        order = sorted(range(len(requests)), key=lambda index: (-limits[index], -len(requests[index].token_ids), index))
        yield from self._attempt([(requests[index], limits[index]) for index in order], sampling, text)

    def _attempt(
        self, group: Sequence[tuple[Request, int]], sampling: Sampling, text: TextRules
    ) -> Iterator[Completion]:
        """Run a group; where GenAI fails, halves of what is left, down to the row that it fails on.

        One row's NaN fails the step of all of them, and the message does not say whose it is. Where it may have gone on
        with NaN, the row is looked at afterwards.
        """
        running = [self._add(request, limit, request.settings(sampling), text) for request, limit in group]
        doubtful: list[tuple[_Running, str, int]] = []
        step, failure = 0, None
        try:
            while running and failure is None:
                step += 1
                try:
                    self._pipeline.step()
                except RuntimeError as error:
                    failure = error
                    break
                for one in list(running):
                    reason = self._read(one, text, step)
                    if reason:
                        running.remove(one)
                        if one.doubt is None:
                            yield _completion(one, reason, step)
                        else:
                            doubtful.append((one, reason, step))
        finally:  # also when the caller stops early: the next run must not find these
            self._drop(running)
        for one, reason, ended in doubtful:
            yield _completion(one, "nan_logits" if self._is_nan(one) else reason, ended)
        if failure is not None:
            yield from self._after(failure, running, step, sampling, text)

    def _after(
        self, failure: RuntimeError, running: Sequence[_Running], step: int, sampling: Sampling, text: TextRules
    ) -> Iterator[Completion]:
        if len(running) == 1:
            if "nan" not in str(failure):
                raise DeviceError(f"openvino: row {running[0].request.row_id}: {failure}") from failure
            yield _completion(running[0], "nan_logits", step)
            return
        left = [(one.request, one.limit) for one in running]
        for half in (left[: len(left) // 2], left[len(left) // 2 :]):
            yield from self._attempt(half, sampling, text)

    def _read(self, one: _Running, text: TextRules, step: int) -> str | None:
        """Take over the tokens of the last step; why the text ended, None when it goes on."""
        import openvino_genai

        while one.handle.can_read():
            for output in one.handle.read().values():
                for token, log_probability in zip(output.generated_ids, output.generated_log_probs, strict=True):
                    if one.doubt is None and _doubtful(one.sampling, text, token, log_probability, self._vocab_size):
                        one.doubt = len(one.token_ids)
                    one.first_step = one.first_step or step
                    one.token_ids.append(token)
                    if text.log_probability:
                        one.log_probability += log_probability
                    reason = finish_reason(one.sampling, one.token_ids, one.limit, text.decode)
                    if reason:
                        one.handle.cancel()
                        return reason
        if one.handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
            raise DeviceError(f"openvino: row {one.request.row_id}: GenAI gave it up with {one.handle.get_status()}")
        return None

    def _is_nan(self, one: _Running) -> bool:
        """Whether the doubtful token was taken from NaN: asked for its log probability alone, GenAI fails on that."""
        assert one.doubt is not None
        tokens = np.concatenate([one.request.token_ids, np.array(one.token_ids[: one.doubt], np.int64)])
        alone = self._add(Request(one.request.row_id, tokens), 1, Sampling(max_new_tokens=1), TextRules())
        try:
            while not alone.handle.can_read():
                self._pipeline.step()
        except RuntimeError as error:
            if "nan" not in str(error):
                raise DeviceError(f"openvino: row {one.request.row_id}: {error}") from error
            return True
        finally:
            self._drop([alone])
        return False

    def _drop(self, running: Sequence[_Running]) -> None:
        for one in running:
            one.handle.cancel()
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()

    def _add(self, request: Request, limit: int, sampling: Sampling, text: TextRules) -> _Running:
        openvino = openvino_package()
        self._count += 1
        ids = openvino.Tensor(np.ascontiguousarray(request.token_ids[None], np.int64))
        handle = self._pipeline.add_request(self._count, ids, _config(request, limit, sampling, text))
        told = 0.0 if text.log_probability else math.nan
        return _Running(request, sampling, limit, handle, log_probability=told)


def _config(request: Request, limit: int, sampling: Sampling, text: TextRules) -> Any:
    import openvino_genai

    values: dict[str, Any] = {
        "max_new_tokens": limit,
        "min_new_tokens": min(sampling.min_new_tokens, limit),
        "repetition_penalty": float(sampling.repetition_penalty),
        "presence_penalty": float(sampling.presence_penalty),
        "frequency_penalty": float(sampling.frequency_penalty),
        "logprobs": int(text.log_probability),  # a tenth of all time; NaN is then found otherwise, see _doubtful
        "do_sample": sampling.do_sample,
    }
    ends = sorted(sampling.ends)
    values |= {"eos_token_id": ends[0], "stop_token_ids": set(ends)} if ends else {"ignore_eos": True}
    if sampling.do_sample:
        values |= {"temperature": float(sampling.temperature), "top_p": float(sampling.top_p)}
        values |= {"top_k": sampling.top_k} if sampling.top_k else {}
        values |= {"min_p": float(sampling.min_p)} if sampling.min_p is not None else {}
        values["rng_seed"] = request_seed(sampling.seed, request.row_id, request.sample)
    return openvino_genai.GenerationConfig(**values)


def request_seed(seed: int, row_id: str, sample: int) -> int:
    """What GenAI's generator of one request starts with: 31 bits of BLAKE2b."""
    text = f"{seed}\0{sample}\0{row_id}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=4, person=b"lengthwise").digest(), "big") >> 1


def _doubtful(sampling: Sampling, text: TextRules, token: int, log_probability: float, vocab_size: int) -> bool:
    """Whether GenAI chose as it does, without a word, where all logits are NaN: a doubt only, for a row may do so, too.

    The greedy choice, unless log probabilities are asked for, is token 0; a draw is uniform over top_k, or all tokens.
    """
    if not sampling.do_sample:
        return token == 0 and not text.log_probability
    drawn_among = min(sampling.top_k or vocab_size, vocab_size)
    return math.isclose(log_probability, -math.log(drawn_among), abs_tol=1e-4)


def _completion(one: _Running, reason: str, step: int) -> Completion:
    return Completion(
        row_id=one.request.row_id,
        sample=one.request.sample,
        token_ids=tuple(one.token_ids),
        finish_reason=reason,
        prompt_tokens=len(one.request.token_ids),
        log_probability=one.log_probability,
        first_token_step=one.first_step,
        last_token_step=step,
    )


def make(new_tokens: int) -> OpenVinoDecoderTarget:
    """The target for texts of up to that many new tokens."""
    return OpenVinoDecoderTarget(new_tokens)
