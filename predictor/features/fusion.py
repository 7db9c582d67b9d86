"""Memory traffic that a compiler saves by fusing kernels, by a rule on the graph of eager kernels.

TorchInductor puts pointwise work, copies, normalisations, softmax and reductions that feed each
other into one kernel: what passes between them stays in registers (Ansel et al. 2024, "PyTorch 2").
Matrix products, convolutions and attention stay library calls. The rule is per edge: a tensor that
goes from one fusable kernel to another is not read again, and it is not written where all its
readers are fusable. Which groups the compiler really forms is left to the network.

Legend: N kernels, E edges.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

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
    inside = fusable[producer] & fusable[consumer]
    arriving = np.bincount(consumer, minlength=n)
    free = np.bincount(consumer, weights=inside, minlength=n)
    reads = np.maximum(np.maximum(inputs_N, arriving), 1)
    readers = np.bincount(producer, minlength=n)
    inside_readers = np.bincount(producer, weights=inside, minlength=n)
    unwritten = fusable & (readers > 0) & (inside_readers == readers)
    return 1.0 - free / reads, np.where(unwritten, 0.0, 1.0)


def with_traffic(table: KernelTable, reads_N: Floats, writes_N: Floats) -> KernelTable:
    """The table with shares of its kernels' reads and writes."""
    return replace(
        table, read_bytes=table.read_bytes * reads_N, write_bytes=table.write_bytes * writes_N
    )
