"""Which costs a decoder's first plan is made with: a few shapes timed on this machine, where that takes seconds.

As in compile.probe, graphs that are only timed are thrown away.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from compile.artifacts import ArtifactStore, artifact_spec
from compile.conversions import converted_model
from compile.costs import probed_uri
from compile.generation.static import as_generator
from compile.generation.timing import slot_seconds
from compile.model import ModelInfo
from compile.shapes import Shape, canonical_json
from compile.targets.decoders import DecoderTarget, grid_of

PROBE_S = 60.0
"""No further shape is begun after so many seconds; what was measured counts, the fit fills in the rest."""


def decoder_probe_shapes(target: DecoderTarget, max_length: int) -> list[Shape]:
    """Fewest and most slots at the shortest length, then the fewest at the longest; cheapest first.

    Empty where candidates have one length: there is nothing to weigh.
    """
    candidates = target.candidates(max_length)
    lengths = sorted({shape.length for shape in candidates})
    if len(lengths) == 1:
        return []
    short, long = ([s for s in candidates if s.length == length] for length in (lengths[0], lengths[-1]))
    fewest = min(short, key=lambda shape: shape.batch)
    chosen = [fewest, max(short, key=lambda shape: shape.batch), min(long, key=lambda shape: shape.batch)]
    return list(dict.fromkeys(chosen))


def probe_decoder_costs(
    store: ArtifactStore,
    target: DecoderTarget,
    model: ModelInfo,
    model_dir: Path,
    precision: str,
    max_length: int,
    on_progress: Callable[[str], None] = lambda line: None,
) -> None:
    """Measure the probe shapes, unless that was done, and keep the seconds where compile.costs finds them.

    Raises CompileError when the model cannot be compiled, DeviceError.
    """
    uri, shapes = probed_uri(store, target, model, precision), decoder_probe_shapes(target, max_length)
    if not shapes or store.blobs.exists(uri):
        return
    seconds: dict[str, float] = {}
    load_s, begun = 0.0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lengthwise-probe-") as work:
        for shape in shapes:
            seconds[str(shape)], load_s = _probe(store, target, model, model_dir, precision, shape, Path(work))
            on_progress(f"{shape}: {seconds[str(shape)]:.2f} s a set of texts")
            if time.monotonic() - begun > PROBE_S:
                break
    store.blobs.put_new(uri, canonical_json({"shapes": seconds, "load_s": load_s}))


def _probe(
    store: ArtifactStore,
    target: DecoderTarget,
    model: ModelInfo,
    model_dir: Path,
    precision: str,
    shape: Shape,
    work: Path,
) -> tuple[float, float]:
    """Seconds of a set of slots, and of loading."""
    spec = artifact_spec(target, model, shape, precision)
    prepared = converted_model(store, target, spec, model_dir, work, [])
    with tempfile.TemporaryDirectory(dir=work) as out_dir:
        target.compile(prepared, shape, precision, Path(out_dir))
        started = time.perf_counter()
        generator = as_generator(target.load(Path(out_dir), shape, precision))
        load_s = time.perf_counter() - started
        grid = grid_of(shape, target.new_tokens)
        return slot_seconds(generator, grid, target.new_tokens, model.vocab_size, time.thread_time), load_s
