"""Helpers of the tests that build artifacts: rows of a model's own vocabulary, a store in a folder, one build."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from compile.artifacts import ArtifactStore, Manifest
from compile.batches import TokenRow
from compile.build import build_missing
from compile.costs import default_costs
from compile.model import ModelInfo, read_model
from compile.parity import TOLERANCES, Tolerance
from compile.planner import make_plan
from compile.shapes import Shape
from compile.targets import load_target
from pipeline.objects import Objects

SPECIAL_TOKENS = 5
"""Ids below it are special in every tiny model."""


def random_rows(model: ModelInfo, lengths: Sequence[int], seed: int = 0, segment_b: int = 0) -> list[TokenRow]:
    """Rows of ordinary tokens, one per length."""
    rng = np.random.default_rng(seed)
    return [
        TokenRow(rng.integers(SPECIAL_TOKENS, model.vocab_size, length), min(segment_b, length)) for length in lengths
    ]


def open_store(folder: Path, cache: str = "cache", cache_bytes: int = 1 << 30) -> ArtifactStore:
    return ArtifactStore(Objects(), str(folder / "artifacts"), folder / cache, cache_bytes)


def build(
    store: ArtifactStore,
    model_dir: Path,
    shapes: Sequence[Shape],
    *,
    target: str = "torch",
    precision: str = "fp32",
    rows: Sequence[TokenRow] | None = None,
    tolerance: Tolerance | None = None,
    lines: list[str] | None = None,
) -> list[Manifest]:
    """Build or reuse the artifacts of those shapes."""
    model = read_model(model_dir)
    samples = random_rows(model, [3, 5, 9, 14, 20, 31]) if rows is None else rows
    plan = make_plan(sorted(shapes), default_costs(target))
    found = lines if lines is not None else []
    return build_missing(
        store,
        load_target(target),
        model,
        model_dir,
        plan,
        precision,
        samples,
        tolerance or TOLERANCES[precision],
        found.append,
    )
