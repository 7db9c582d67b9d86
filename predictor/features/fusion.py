"""Memory traffic that a compiler saves by fusing kernels, by a rule on the graph of eager kernels.

TorchInductor puts pointwise work, copies, normalisations, softmax and reductions that feed each
other into one kernel: what passes between them stays in registers (Ansel et al. 2024, "PyTorch 2").
Matrix products, convolutions and attention stay library calls. The rule is per edge: a tensor that
goes from one fusable kernel to another is not read again, and it is not written where all its
readers are fusable, as long as no library call stands between. Which groups the compiler really
forms is left to the network.

It also decides the memory format of convolutions for the whole graph (`prefers_channels_last`).

Legend: N kernels, E edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from predictor.features.roofline import op_class_of
from predictor.features.table import OP_NAMES, KernelTable
from predictor.graph.ops import OPS

FUSABLE_CLASSES: frozenset[str] = frozenset({
    "elementwise", "copy", "norm", "softmax", "reduction",
})  # fmt: skip
NOT_FUSABLE: frozenset[str] = frozenset({"sort", "scan", "pool", "pool_backward", "random"})
"""Ops of those classes that end a fusion."""
_FUSABLE_OP = np.array([
    OPS[name].op_class in FUSABLE_CLASSES and name not in NOT_FUSABLE for name in OP_NAMES
])  # fmt: skip

Floats = NDArray[np.float64]


def kept_traffic(
    op_N: NDArray[np.int16], inputs_N: NDArray[np.int64], edge_index_2E: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """(N,) shares of each kernel's reads and writes that are left after fusion.

    Args:
        op_N: index into `OP_NAMES`.
        inputs_N: tensors that the kernel reads, -1 or 0 where its dimensions do not say.
        edge_index_2E: producer and consumer of each edge.
    """
    producer, consumer = edge_index_2E
    fusable = _FUSABLE_OP[op_N]
    n = len(op_N)
    stage = _stages(fusable, edge_index_2E)
    inside = fusable[producer] & fusable[consumer] & (stage[producer] == stage[consumer])
    arriving = np.bincount(consumer, minlength=n)
    free = np.bincount(consumer, weights=inside, minlength=n)
    reads = np.maximum(np.maximum(inputs_N, arriving), 1)
    readers = np.bincount(producer, minlength=n)
    inside_readers = np.bincount(producer, weights=inside, minlength=n)
    unwritten = fusable & (readers > 0) & (inside_readers == readers)
    return 1.0 - free / reads, np.where(unwritten, 0.0, 1.0)


def _stages(fusable_N: NDArray[np.bool_], edge_index_2E: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) how many library calls each kernel must wait for, one after the other.

    Kernels of one stage can be one kernel; a tensor that is read in a later stage (a residual
    beside a matrix product) is written and read again.
    """
    stage, fusable = [0] * len(fusable_N), fusable_N.tolist()
    for producer, consumer in edge_index_2E.T.tolist():  # producers stand before their consumers
        later = stage[producer] + (fusable[consumer] and not fusable[producer])
        stage[consumer] = max(stage[consumer], later)
    return np.array(stage, dtype=np.int64)


MOST_NODES_A_CONV = 300
"""With fewer convolutions the compiler leaves the format alone."""
FORMAT_COST: Mapping[str, float] = {
    "grouped": 1.358, "narrowing": 0.725, "small": 0.783, "other": 0.823,
}  # fmt: skip
"""Time of a kind of convolution in channels-last relative to contiguous, as TorchInductor assumes
(`GraphLowering.decide_layout_opt` in torch/_inductor/graph.py)."""


def prefers_channels_last(table: KernelTable) -> bool:
    """Whether TorchInductor runs the convolutions of an inference graph in channels-last.

    It weighs their FLOPs by `FORMAT_COST`: grouped ones (more than a channel a group) speak against
    it, all others for it.
    """
    conv = op_class_of(table) == "conv"
    n = int(conv.sum())
    if n == 0 or len(table) >= MOST_NODES_A_CONV * n:
        return False
    groups = np.maximum(table.dim("groups")[conv], 1)
    c_out, c_in = table.dim("c_out")[conv], table.dim("c_in")[conv] / groups
    flops = table.flops[conv]
    cost = np.full(n, FORMAT_COST["other"])
    cost[(c_out <= 64) & (c_in <= 64)] = FORMAT_COST["small"]
    cost[(2 * c_out <= c_in) & (table.dim("kh")[conv] > 1)] = FORMAT_COST["narrowing"]
    cost[(groups > 1) & (c_in > 1)] = FORMAT_COST["grouped"]
    return bool((flops * cost).sum() <= flops.sum())


def with_traffic(table: KernelTable, reads_N: Floats, writes_N: Floats) -> KernelTable:
    """The table with shares of its kernels' reads and writes."""
    return replace(
        table, read_bytes=table.read_bytes * reads_N, write_bytes=table.write_bytes * writes_N
    )
