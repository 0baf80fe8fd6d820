"""Keeps OpenVINO from fusing gated layers: its fused kernel of CPUs with AMX needs two threads, and we run one."""

from __future__ import annotations

from typing import Any

import numpy as np


def keep_gates_apart(graph: Any) -> int:
    """Write `act(gate) * up` so that the CPU plugin does not recognise it; returns how many gates there were.

    With one thread the kernel LLMMLP (bf16, AMX; OpenVINO 2026.4) divides by threads / 2, and the process dies of
    SIGFPE when the model is compiled. What is written instead is the same to the last bit: a Swish with an explicit
    beta of 1, and for Gelu a factor of 2 before and of 1/2 after the product.
    """
    from openvino import opset13

    found = 0
    for node in graph.get_ordered_ops():
        products = [one.get_node() for one in _consumers(node) if one.get_node().get_type_name() == "Multiply"]
        if node.get_type_name() not in {"Swish", "Gelu"} or not products:
            continue
        found += 1
        if node.get_type_name() == "Swish":
            if node.get_input_size() == 1:
                node.set_arguments([node.input_value(0), _constant(1.0).output(0)])
            continue
        for product in products:
            after = list(_consumers(product))
            doubled = opset13.multiply(node.output(0), _constant(2.0))
            for place in (port for port in product.inputs() if port.get_source_output().get_node() == node):
                place.replace_source_output(doubled.output(0))
            halved = opset13.multiply(product.output(0), _constant(0.5))
            for place in after:
                place.replace_source_output(halved.output(0))
    graph.validate_nodes_and_infer_types()
    return found


def _consumers(node: Any) -> Any:
    return node.output(0).get_target_inputs()


def _constant(value: float) -> Any:
    from openvino import opset13

    return opset13.constant(np.float32(value))
