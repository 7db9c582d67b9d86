"""How much work a list of calls is, to tell the larger branch: traffic plus scaled arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.graph.ir import OpNode

FLOPS_PER_BYTE = 100
"""Arithmetic that takes as long as moving a byte, on most accelerators within a factor of three
(A100 153, L4 400, a server's processor 20 to 60)."""
CALL_BYTES = 1_000_000
"""Traffic that takes as long as launching one kernel, about a microsecond."""


def work(nodes: Sequence[OpNode]) -> float:
    """Work of calls, in bytes of traffic that take as long."""
    total = 0.0
    for node in nodes:
        if node.attrs.get("view"):
            continue
        moved = sum(s.touched_bytes for s in (*node.inputs, *node.outputs))
        total += CALL_BYTES + moved + _products(node) / FLOPS_PER_BYTE
    return total


def _products(node: OpNode) -> float:
    """Arithmetic of a product of two operands, about: what each output element sums."""
    if node.op == "aten.convolution" and len(node.inputs) > 1:
        weight = node.inputs[1]
        return 2.0 * node.outputs[0].numel * weight.numel / max(1, weight.shape[0])
    if node.op in ("aten.mm", "aten.bmm") and len(node.inputs) > 1:
        return 2.0 * node.outputs[0].numel * node.inputs[0].shape[-1]
    if node.op == "aten.addmm":
        return 2.0 * node.outputs[0].numel * node.inputs[1].shape[-1]
    if node.op == "predictor.sdpa":
        return 4.0 * node.outputs[0].numel * node.inputs[1].shape[-2]
    return 0.0
