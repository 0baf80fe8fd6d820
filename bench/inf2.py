"""Measures the target neuron on this host against AWS's published rates, and writes one JSON file to send back.

bench/inf2.sh runs it. Models have random weights, which speed does not notice, and every row fills its shape, as in
AWS's figures; each goes through `lengthwise run`, so reading, tokenising and publishing are there, too. What fails is
in the file with its reason, and the next model goes on.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DS = "2026-11-30"
WORDS = 1000


@dataclass(frozen=True, slots=True)
class Published:
    """A line of AWS's table: inf2.xlarge, both cores, length 128, matmul in bf16 (docs/inf2.md)."""

    model_type: str
    sizes: Mapping[str, int]
    """What differs from the configuration's defaults, which are those of the base models."""
    batch: int
    inferences_per_second: float


_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
PUBLISHED = {
    "distilbert-base": Published("distilbert", {}, 16, 5308),
    "roberta-base": Published("roberta", {"vocab_size": 50265, "max_position_embeddings": 514}, 8, 2920),
    "bert-base": Published("bert", {}, 8, 2674),
    "bert-large": Published("bert", _LARGE, 4, 950),
}
_TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_TINY_DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}


@dataclass(frozen=True, slots=True)
class Settings:
    """From the environment, INF2_<NAME>; see bench/inf2.sh."""

    models: tuple[str, ...]
    rows: int
    length: int
    reviews: int
    tiny: bool


def settings(environment: Mapping[str, str]) -> Settings:
    """Raises SystemExit that names the variable."""
    models = tuple(environment.get("INF2_MODELS", ",".join(PUBLISHED)).split(","))
    unknown = [name for name in models if name not in PUBLISHED]
    if unknown:
        raise SystemExit(f"INF2_MODELS: {', '.join(unknown)} is unknown; choose from: {', '.join(PUBLISHED)}")
    numbers = {"ROWS": 200_000, "LENGTH": 128, "REVIEWS": 20_000}
    try:
        rows, length, reviews = (int(environment.get(f"INF2_{name}", value)) for name, value in numbers.items())
    except ValueError as error:
        raise SystemExit(f"INF2_ROWS, INF2_LENGTH and INF2_REVIEWS are numbers: {error}") from None
    return Settings(models, rows, length, reviews, bool(environment.get("INF2_TINY")))


def make_model(folder: Path, published: Published, tiny: bool) -> None:
    """A classifier of that architecture with random weights, and a tokenizer of WORDS words."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    small = (_TINY_DISTIL if published.model_type == "distilbert" else _TINY) if tiny else {}
    pad = 1 if published.model_type == "roberta" else 0
    torch.manual_seed(0)
    config = AutoConfig.for_model(published.model_type, **{**published.sizes, **small}, num_labels=2, pad_token_id=pad)
    AutoModelForSequenceClassification.from_config(config).eval().save_pretrained(folder)
    _tokenizer(pad).save_pretrained(folder)


def _tokenizer(pad: int) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"] if pad == 0 else ["[CLS]", "[PAD]", "[SEP]", "[UNK]"]
    vocabulary = {word: index for index, word in enumerate([*special, *(f"w{n}" for n in range(WORDS))])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106 - a token of a vocabulary
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    core.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=core, **names, model_input_names=["input_ids", "token_type_ids", "attention_mask"]
    )


def write_job(folder: Path, name: str, given: Settings) -> Path:
    """Rows that all fill the shape, and the job over them; returns the job file."""
    published = PUBLISHED[name]
    make_model(folder / "model", published, given.tiny)
    draw = random.Random(0)  # noqa: S311 - texts, not secrets
    words = [f"w{number}" for number in range(WORDS)]
    (folder / "in").mkdir()
    with (folder / "in" / "rows.jsonl").open("w") as file:
        for _ in range(given.rows):
            file.write(json.dumps({"text": " ".join(draw.choices(words, k=given.length))}) + "\n")
    job = {
        "name": name,
        "target": "neuron",
        "precision": "bf16",
        "model": {"uri": "model"},
        "input": {"uri": "in/", "text": "text"},
        "shapes": [f"{published.batch}x{given.length}"],
        "max_length": given.length,
        "truncation": "head",
        # Random weights have logits near nothing: how far they are off is told, and stops no measurement.
        "parity": {"max_abs_logit": 1.0, "mean_abs_logit": 1.0, "max_label_flips": 1.0},
        "output": {"uri": "out"},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return folder / "job.yaml"


def lengthwise(*arguments: str) -> Any:
    """The command's JSON. Raises RuntimeError with its exit code and the end of what it said."""
    command = [sys.executable, "-m", "pipeline", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"lengthwise {arguments[0]} ended with {done.returncode}: {done.stderr[-3000:]}")
    return json.loads(done.stdout)


def measure(folder: Path, name: str, given: Settings) -> dict[str, Any]:
    """One model: compiled, proven and run. Rates are rows per second, of all cores together."""
    job = write_job(folder, name, given)
    report = lengthwise("run", str(job), "--ds", DS)
    (artifact,) = lengthwise("artifacts", "list", str(job))["artifacts"]
    published = PUBLISHED[name]
    workers = len(report["cores"])
    return {
        "shape": artifact["spec"]["shape"],
        "rows": report["predicted"],
        "workers": workers,
        "infer_rows_per_second": report["infer_rows_per_second"],
        "executing_rows_per_second": report["predicted"] * workers / report["infer_execute_seconds"],
        "published_inferences_per_second": published.inferences_per_second if given.length == 128 else None,
        "compile_seconds": artifact["compile_seconds"],
        "load_seconds": artifact["timing"]["load_s"],
        "batch_milliseconds": artifact["timing"]["median_s"] * 1000,
        "parity": artifact["parity"],
        "versions": artifact["spec"]["versions"],
        "seconds": report["seconds"],
    }


def reviews(folder: Path, rows: int) -> dict[str, Any]:
    """A night of real reviews in planned shapes, with real weights: parity, padding and rate of an ordinary job."""
    from bench.night import run_night

    report = run_night(folder, rows, tiny=False, target="neuron")
    artifacts = lengthwise("artifacts", "list", str(folder / "night.yaml"))["artifacts"]
    shown = ("rows", "predicted", "padding_efficiency", "infer_rows_per_second", "seconds")
    parity = {each["spec"]["shape"]: each["parity"] for each in artifacts}
    return {name: report[name] for name in shown} | {"parity": parity}


def host() -> dict[str, Any]:
    """What identifies the machine and its software; null where a tool is not there."""
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "neuron-ls": _said("neuron-ls", "--json-output"),
        "neuronx-cc": _said("neuronx-cc", "--version"),
        "packages": _said("dpkg-query", "--show", "aws-neuronx-*"),
    }


def _said(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return (done.stdout or done.stderr).strip()[:20_000]


def main() -> int:
    """Argument: the JSON file. 0 when everything was measured; the file is whole after each model either way."""
    out, given = Path(sys.argv[1]).resolve(), settings(os.environ)
    out.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"format": 1, "settings": {name: getattr(given, name) for name in Settings.__slots__}}
    found |= {"host": host(), "doctor": lengthwise("doctor"), "measured": {}}
    (target,) = [each for each in found["doctor"]["targets"] if each["name"] == "neuron"]
    found["testdouble"] = any("testdouble" in version for version in target["versions"].values())
    steps: dict[str, Callable[[Path], dict[str, Any]]]
    steps = {name: functools.partial(measure, name=name, given=given) for name in given.models}
    if given.reviews:
        steps["reviews"] = functools.partial(reviews, rows=given.reviews)
    failed = 0
    for name, step in steps.items():
        _say(f"{name} ...")
        folder, started = out.parent / "work" / name, time.perf_counter()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            found["measured"][name] = step(folder) | {"error": None}
        except Exception as error:  # told in the file, whatever it is
            failed += 1
            found["measured"][name] = {"error": f"{type(error).__name__}: {error}"}
        found["measured"][name]["total_seconds"] = round(time.perf_counter() - started, 1)
        _say(f"{name}: {found['measured'][name]['error'] or 'measured'}")
        out.write_text(json.dumps(found, indent=1) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
    _say(f"{len(steps) - failed} measured, {failed} failed; send back: {out}")
    return int(failed > 0)


def _say(line: str) -> None:
    print(f"inf2: {line}", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
