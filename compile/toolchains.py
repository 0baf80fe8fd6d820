"""Which targets exist: Lengthwise's own, and those that installed packages register. Light: DAG parsing imports it."""

from __future__ import annotations

from importlib.metadata import entry_points

BUILT_IN = {
    "openvino": "compile.targets.openvino",
    "torch": "compile.targets.torch",
    "onnxruntime": "compile.targets.onnxruntime",
    "neuron": "compile.targets.neuron",
}
"""Name in a job file -> module with a `target` attribute, or with `make(settings)` where a job has settings for it.

A target's heavy imports stay inside its functions.
"""
DECODERS = {
    "torch": "compile.targets.torch_decoder",
    "openvino": "compile.targets.openvino_decoder",
    "openvino-slots": "compile.targets.openvino_slots",
    "neuron": "compile.targets.neuron_decoder",
}
"""Those that generate: name in a job file -> module with `make(new_tokens)`, or `make(new_tokens, settings)`."""
ENTRY_POINT_GROUP = "lengthwise.targets"
"""A package adds a target by an entry point in this group: `name = module`, with the same attribute."""


def target_modules() -> dict[str, str]:
    """Every target's module by its name, nothing imported. Raises ValueError when a name is given twice."""
    modules = dict(BUILT_IN)
    for found in sorted(set(entry_points(group=ENTRY_POINT_GROUP))):
        if found.name in modules:
            raise ValueError(
                f"target {found.name!r} is registered by {modules[found.name]} and by {found.value}; uninstall one"
            )
        modules[found.name] = found.value
    return modules


def decoder_module(name: str) -> str:
    """The module of the decoder target of that name. Raises ValueError that lists the valid names."""
    if name not in DECODERS:
        raise ValueError(f"target {name!r} cannot generate; choose one of: {', '.join(DECODERS)}")
    return DECODERS[name]


def target_module(name: str) -> str:
    """The module of the target of that name. Raises ValueError that lists the valid names."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    modules = target_modules()
    if name not in modules:
        raise ValueError(f"unknown target {name!r}; choose one of: {', '.join(modules)}")
    return modules[name]
