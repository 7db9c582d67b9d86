"""Work of XLA's sorts: a bitonic network, or a radix sort of a library on GPUs.

A bitonic network of n = 2^k elements has k(k+1)/2 stages of n/2 comparisons (Batcher, "Sorting
networks and their applications", 1968).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from predictor.graph.ir import DTYPE_BYTES, OpNode
from predictor.lower.xla_backends import Backend

RADIX_FROM = 16_384
"""Elements from which XLA for GPUs calls a library's radix sort."""
_RADIX_OPERANDS = 2
"""Keys, or keys with one payload: what the library sorts."""
_TILE_STAGES = 11
"""Stages of a GPU's network that stay in one block's shared memory: tiles of 2,048 elements."""


def network_flops(dims: Mapping[str, int], operands: int) -> float:
    """Steps of a bitonic network on vector lanes.

    Each stage compares every element with another and takes it or the other, an operand each.

    Args:
        dims: `rows` sorted on their own, `cols` elements each.
        operands: keys and payloads that are sorted together.
    """
    levels = math.ceil(math.log2(max(2, dims["cols"])))
    stages = levels * (levels + 1) / 2
    return dims["rows"] * dims["cols"] * stages * (1 + operands)


def passes_over_memory(node: OpNode, dims: Mapping[str, int], backend: Backend) -> float:
    """Times that a sort reads and writes its operands.

    On GPUs a radix sort takes a pass for each byte of the key and reads it once before; a network
    one for each stage whose partners lie further apart than a tile. A TPU's vector memory holds
    what it sorts.
    """
    if backend.name != "gpu":
        return 1.0
    if len(node.inputs) <= _RADIX_OPERANDS and dims["cols"] >= RADIX_FROM:
        return DTYPE_BYTES[node.inputs[0].dtype] + 0.5
    outside = max(0, math.ceil(math.log2(max(2, dims["cols"]))) - _TILE_STAGES)
    return 1.0 + outside * (outside + 3) / 2
