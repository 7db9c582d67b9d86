"""Time of collectives over the links between devices: latency and bandwidth, a ring of ranks.

What crosses the links is no memory traffic, so a roofline of bytes in memory does not see it. Plain
on purpose: one ring over the scale-up links of one box, no overlap with computation.

Legend: N kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from predictor.features.roofline import op_class_of
from predictor.features.table import OP_NAMES, KernelTable, item_bytes
from predictor.hardware.device import Device

RING_PASSES: Mapping[str, float] = {
    "all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0,
    "collective": 1.0,
}  # fmt: skip
"""Times that (ranks - 1) / ranks of the larger buffer leaves a rank on a ring (Thakur et al. 2005,
"Optimization of collective communication operations in MPICH"); a pairwise exchange sends all."""
HOP_US = 1.0
"""Time for a step of the ring besides its bytes: a hop of a switch or torus and its protocol."""
START_US = 4.0
"""Time to enter a collective."""
LINK_SHARE = 0.8
"""Share of a link's rate that protocols leave."""


def link_us(table: KernelTable, device: Device) -> NDArray[np.float64]:
    """(N,) time of every collective over the links; 0 of other kernels and of unknown links."""
    out = np.zeros(len(table))
    rate = link_gbps(device)
    rows = np.flatnonzero(op_class_of(table) == "collective")
    if rate is None or not len(rows):
        return out
    ranks = np.maximum(table.dim("ranks")[rows], 1.0)
    size = table.dim("numel")[rows] * item_bytes(table)[rows]
    names = [OP_NAMES[i] for i in table.op[rows]]
    passes = np.array([RING_PASSES.get(name, 0.0) for name in names])
    crossing = np.where(passes > 0, passes * (ranks - 1) / ranks, 1.0)
    steps = np.where(passes > 0, passes * (ranks - 1), 1.0)
    moved = size * crossing / (rate * LINK_SHARE) * 1e-3
    out[rows] = np.where(ranks > 1, START_US + HOP_US * steps + moved, 0.0)
    return out


def link_gbps(device: Device) -> float | None:
    """Rate of the scale-up links of a device in one direction, else of its network."""
    if device.scaleup_bw_gbps is not None:
        return device.scaleup_bw_gbps / 2
    return device.scaleout_bw_gbps or device.host_bw_gbps
