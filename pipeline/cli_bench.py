"""`lengthwise bench`: how fast a causal language model writes on a target, as a table and a picture."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.cores import ONE_THREAD, pool_of
from pipeline.terminal import Json, say, show

EPILOG = """
Texts are greedy, of random prompts, and never end early: a full set of slots is handed over at once, on one core.
encoding: seconds until the first new token of one prompt alone. latency: until a text's last token, p50 and p95 over
all texts. generated tokens/s: new tokens of the set by the seconds until its last text ended; all tokens/s: prompts
too. The table says it in full.
"""


def bench(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="a folder, s3://bucket/prefix or a hub id")],
    target: Annotated[str, typer.Option(help="target of task generate")] = "openvino",
    precision: Annotated[str, typer.Option(help="of the target; auto is its own choice here")] = "auto",
    prompt: Annotated[int, typer.Option(min=1, help="tokens of each prompt")] = 256,
    new: Annotated[str, typer.Option(metavar="N[,N...]", help="new tokens of each text")] = "256,512,768",
    slots: Annotated[str, typer.Option(metavar="N[,N...]", help="texts at once")] = "1,16",
    repeats: Annotated[int, typer.Option(min=1, max=100, help="sets measured per line")] = 3,
    table: Annotated[Path | None, typer.Option(metavar="FILE.md", help="also write the table here")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="draw latency and throughput")] = None,
    as_json: Json = False,
) -> None:
    """Measure encoding time, latency and throughput of generation; needs no job, stores nothing."""
    os.environ.update(ONE_THREAD)  # before any runtime is imported
    from compile.targets.decoders import load_decoder_target
    from pipeline.context import default_cache_dir
    from pipeline.errors import JobError
    from pipeline.leases import leased
    from pipeline.models import fetch_model
    from pipeline.objects import Objects
    from pipeline.speed import FIGURES, Question, check, chosen_precision, measure_speeds
    from pipeline.speed_table import markdown, picture

    for option, path, ending in (("--table", table, ".md"), ("--plot", plot, ".svg")):
        if path and (path.suffix != ending or not path.resolve().parent.is_dir()):
            raise JobError(f"{option} {path}: give a file that ends in {ending}, in a folder that exists")
    question = Question(target, precision, prompt, _numbers("--new", new), _numbers("--slots", slots), repeats)
    folder = fetch_model(model, None, Objects(), default_cache_dir())
    check(folder, question)
    chosen = chosen_precision(question)
    on_cpu = load_decoder_target(target, new_tokens=1).on_cpu
    with leased(pool_of(on_cpu=on_cpu), "bench", say):
        speeds = list(measure_speeds(folder, question, lambda line: say(f"bench: {line}")))
    title = f"{Path(model).name} on {target}, {chosen}"
    if table:
        table.write_text(markdown(title, speeds))
    if plot:
        plot.write_text(picture(title, speeds))
    found: dict[str, Any] = {"model": model, "target": target, "precision": chosen, "definitions": FIGURES}
    show(found | {"speeds": [one.to_json() for one in speeds]}, as_json, lambda _: markdown(title, speeds))


def _numbers(option: str, text: str) -> tuple[int, ...]:
    from pipeline.errors import JobError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) >= 1 for part in parts):
        raise JobError(f"{option} {text!r}: give whole numbers above 0, separated by commas, such as 256,512")
    return tuple(map(int, parts))


def add_to(app: typer.Typer) -> None:
    """As a command of its own."""
    app.command(epilog=EPILOG)(bench)
