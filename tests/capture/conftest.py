"""Graphs of small programs, and ways to look at them."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch

from predictor.graph.ir import OpGraph, OpNode

torch.set_num_threads(1)


def _ops(graph: OpGraph, phase: str | None = None) -> Counter[str]:
    """Calls that are not views, by op."""
    return Counter(
        n.op for n in graph.nodes if not n.attrs.get("view") and phase in (None, n.phase)
    )


@pytest.fixture
def ops() -> Callable[..., Counter[str]]:
    return _ops


@pytest.fixture
def only() -> Callable[[OpGraph, str], OpNode]:
    def find(graph: OpGraph, op: str) -> OpNode:
        (node,) = [n for n in graph.nodes if n.op == op]
        return node

    return find


@pytest.fixture
def matmul_flops() -> Callable[[OpGraph], int]:
    """2 m n k of every product in the graph, counted from shapes alone."""

    def count(graph: OpGraph) -> int:
        total = 0
        for node in graph.nodes:
            if node.op in ("aten.mm", "aten.addmm", "aten.bmm"):
                a, b = node.inputs[-2:]
                total += 2 * a.numel * b.shape[-1]
            if node.op == "predictor.sdpa":
                a = node.attrs
                total += 4 * a["batch"] * a["heads"] * a["q_len"] * a["kv_len"] * a["head_dim"]
        return total

    return count
