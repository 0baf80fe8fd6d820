"""What one batch of a shape costs in seconds: measured where an artifact was built, fitted where it was not."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compile.artifacts import ArtifactStore
from compile.model import ModelInfo
from compile.shapes import Shape, canonical_json
from compile.targets import AnyTarget
from compile.yardstick import at_best_speed

PRIOR = 1e-3
"""Weight of the default form against the squared relative errors of the points, per coefficient.

Artifacts are built for shapes of nearly equal slot tokens, which alone cannot tell a cost per batch from one per token.
"""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """seconds = per_batch + per_token * slot_tokens + per_token_length * slot_tokens * length.

    The last term is attention, whose work per token grows with the length of the row.
    """

    per_batch: float
    per_token: float
    per_token_length: float

    def seconds(self, shape: Shape, new_tokens: int = 0) -> float:
        return float(_features(shape, new_tokens) @ np.array([self.per_batch, self.per_token, self.per_token_length]))


DEFAULTS = {
    "openvino": Coefficients(6e-4, 4.9e-5, 4.4e-8),
    "onnxruntime": Coefficients(6e-4, 1.1e-4, 1.9e-7),
    "torch": Coefficients(3e-3, 2.1e-4, 1.7e-7),
    "neuron": Coefficients(2.9e-4, 5.4e-6, 1.2e-9),
}
"""Of a 6-layer encoder of width 384 on a server core of 2024. Their ratios choose a first plan; builds then measure.

neuron: of bert-base in bf16 on one NeuronCore-v2, from rates that AWS publishes for inf2.xlarge (length 128, batches 1
and 8); attention's share from the number of multiplications. Nobody here has measured it.
"""

DECODER_DEFAULTS = {
    "neuron": Coefficients(2e-3, 1e-5, 1e-9),
    "openvino": Coefficients(2e-2, 4e-4, 2e-8),
    "torch": Coefficients(6e-2, 2e-3, 1e-7),
}
"""Of a 30-layer decoder of width 576, likewise; `per_batch` is of each decode step, which reads all weights.

Of neuron from the memory bandwidth and peak rate that AWS publishes for a NeuronCore, not from any measurement.
"""


CPU_COMPILE_S = 1.0
COMPILE_S = {"neuron": 120.0}
"""Seconds of compiling one graph, while no artifact tells, of targets other than a CPU's."""
DECODER_GRAPHS = 2
"""Prefill and decode."""
CPU_LOAD_S = 0.1
LOAD_S = {"neuron": 10.0}
"""Seconds of loading an artifact, likewise: weights go to the device."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of one execution per shape, on one machine kind, for one model at one precision."""

    fitted: Coefficients
    measured: Mapping[Shape, float] = field(default_factory=dict)
    load_s: float = CPU_LOAD_S
    """Seconds in which a worker loads one shape: the price of one more graph in a plan."""
    compile_s: float = CPU_COMPILE_S
    """Seconds in which one artifact compiles: the median of what was built for this target and kind of model."""
    new_tokens: int = 0
    """Of decoders: an execution then is a full set of slots, from their prompts to their last tokens."""

    def seconds(self, shape: Shape) -> tuple[float, bool]:
        """Seconds of one batch, and whether they were measured (True) or come from the fit (False)."""
        found = self.measured.get(shape)
        return (found, True) if found is not None else (self.fitted.seconds(shape, self.new_tokens), False)


def default_costs(target_name: str, new_tokens: int = 0) -> CostModel:
    """Costs for planning when nothing was measured yet; an unknown target gets those of `openvino`."""
    compile_s, load_s = COMPILE_S.get(target_name, CPU_COMPILE_S), LOAD_S.get(target_name, CPU_LOAD_S)
    if not new_tokens:
        return CostModel(DEFAULTS.get(target_name, DEFAULTS["openvino"]), {}, load_s, compile_s)
    found = DECODER_DEFAULTS.get(target_name, DECODER_DEFAULTS["openvino"])
    steps = replace(found, per_batch=found.per_batch * new_tokens)
    return CostModel(steps, {}, load_s, compile_s * DECODER_GRAPHS, new_tokens)


def fit_costs(measured: Mapping[Shape, float], default: Coefficients, new_tokens: int = 0) -> CostModel:
    """A model through measured shapes; what the points leave open keeps the ratios of `default`."""
    points = {shape: seconds for shape, seconds in sorted(measured.items()) if seconds > 0}
    if not points:
        return CostModel(default, new_tokens=new_tokens)
    seconds = np.array(list(points.values()))
    scale = float(np.median(seconds / np.array([default.seconds(shape, new_tokens) for shape in points])))
    expected = scale * np.array([default.per_batch, default.per_token, default.per_token_length])
    rows = np.array([_features(shape, new_tokens) for shape in points]) / seconds[:, None]
    prior = np.sqrt(PRIOR) * np.diag(1 / expected)
    target = np.concatenate([np.ones(len(points)), np.full(3, np.sqrt(PRIOR))])
    fitted = Coefficients(*_least_squares(np.concatenate([rows, prior]), target))
    return CostModel(fitted, points, new_tokens=new_tokens)


def job_costs(store: ArtifactStore, target: AnyTarget[Any], model: ModelInfo, precision: str) -> CostModel:
    """Costs from what was measured for this target, machine kind, model and precision: at builds, and by a probe."""
    new_tokens = target.options(precision).get("new_tokens", "0")  # of decoders, which cost by it
    wanted = (target.name, target.machine(), model.digest, precision, new_tokens)
    probed, loads = _probed(store, probed_uri(store, target, model, precision))
    measured = {shape: [timing] for shape, timing in probed.items()}
    built: list[float] = []
    for manifest in store.list():
        spec = manifest.spec
        made_for = dict(spec.options).get("new_tokens", "0")
        # Encoders tell nothing of decoders, nor what was compiled elsewhere and adopted, at 0 seconds.
        alike = spec.target == target.name and (made_for == "0") == (new_tokens == "0")
        if alike and manifest.compile_seconds:
            built.append(manifest.compile_seconds)
        if (spec.target, spec.machine, spec.model_digest, spec.precision, made_for) == wanted and manifest.timing:
            measured.setdefault(spec.shape, []).append((manifest.timing.median_s, manifest.timing.yardstick_s))
            loads.append(manifest.timing.load_s)
    default = default_costs(target.name, int(new_tokens))
    costs = fit_costs(at_best_speed(measured), default.fitted, int(new_tokens))
    load_s = float(np.median(loads)) if loads else default.load_s
    return replace(costs, load_s=load_s, compile_s=float(np.median(built)) if built else default.compile_s)


def probed_uri(store: ArtifactStore, target: AnyTarget[Any], model: ModelInfo, precision: str) -> str:
    """Where compile.probe and compile.generation.probe keep their seconds by shape."""
    identity = [target.name, target.versions(), target.machine(), model.digest, precision]
    new_tokens = target.options(precision).get("new_tokens")
    identity += [new_tokens] if new_tokens else []
    return f"{store.uri}/costs/{hashlib.sha256(canonical_json(identity)).hexdigest()[:32]}.json"


def _probed(store: ArtifactStore, uri: str) -> tuple[dict[Shape, tuple[float, float]], list[float]]:
    """Seconds by shape, with the yardstick's, and to load a shape, as far as a probe measured them."""
    try:
        data = json.loads(store.blobs.get(uri))
        yards = data.get("yardsticks", {})
        shapes = {Shape.parse(name): (float(s), float(yards.get(name, 0))) for name, s in data["shapes"].items()}
        return shapes, [float(data["load_s"])]
    except (FileNotFoundError, ValueError, TypeError, AttributeError, KeyError):
        return {}, []  # costs steer a plan and nothing else: without them it is planned by the defaults


def _features(shape: Shape, new_tokens: int = 0) -> NDArray[np.float64]:
    length = shape.length + new_tokens
    return np.array([1.0, shape.batch * length, shape.batch * length * length])


def _least_squares(rows: NDArray[np.float64], target: NDArray[np.float64]) -> tuple[float, float, float]:
    """Non-negative x that minimises |rows @ x - target|: the best over all choices of terms that are zero."""
    best, best_error = np.zeros(3), np.inf
    for size in (3, 2, 1):
        for chosen in itertools.combinations(range(3), size):
            solution = np.zeros(3)
            solution[list(chosen)] = np.linalg.lstsq(rows[:, chosen], target, rcond=None)[0]
            error = float(np.square(rows @ solution - target).sum())
            if (solution >= 0).all() and error < best_error:
                best, best_error = solution, error
    return float(best[0]), float(best[1]), float(best[2])
