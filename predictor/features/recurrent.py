"""Time of recurrent layers: steps that wait for each other.

A library multiplies the inputs of all steps at once, then walks the steps: each one a product of
the hidden state of a batch with the same weights, and a kernel for the gates. The product is small,
so it is bound by what few tiles feed or by the weights, which come from memory again each step
unless the cache holds them. Backward walks the steps with the weights transposed and adds the
gradient of the weights, one product over all steps.

Legend: N layers of recurrent kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from predictor.features.roofline import VECTOR_PATH, Roofline
from predictor.features.table import OP_NAMES, KernelTable, item_bytes
from predictor.features.tiles import (
    SPLITS,
    STEP_BYTES,
    TILES,
    VECTOR_TILES,
    WHOLE,
    Floats,
    Products,
    tiled_us,
)
from predictor.hardware.device import Device
from predictor.hardware.peaks import mem_bw_gbps
from predictor.hardware.sustained import cache_mib, sustained_bw_gbps

CALL_US = 40.0
"""Of a call: descriptors, states in and out."""
STEP_US = 12.0
"""Of a step beside its product: the gates' kernel, and two kernels that wait for each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    """Times of N recurrent kernels, microseconds."""

    total_us: Floats
    step_us: Floats
    """Product of one step of one layer and direction."""
    whole_us: Floats
    """The same without a split of k."""
    beside_us: Floats
    """All that does not wait for a step: inputs, gradient of the weights."""
    stream_us: Floats
    """Weights of one step from memory."""


def recurrent(table: KernelTable, roof: Roofline, device: Device, *, narrow: bool) -> Recurrent:
    """Times of recurrent kernels.

    Args:
        table: N kernels of class recurrent.
        roof: of these rows.
        device: a GPU whose number of units is known.
        narrow: whether the library has kernels for products with few rows (cuBLAS since 9); one
            without neither splits them nor has tiles for them.
    """
    d = table.dim
    item_N = item_bytes(table)
    hidden, batch, steps = d("hidden_size"), d("batch"), d("steps")
    gates, layers, both = d("gates"), np.maximum(d("layers"), 1.0), np.maximum(d("directions"), 1.0)
    backward = table.op == OP_NAMES.index("rnn_backward")
    rate = table.flops / roof.compute_us
    weights = gates * hidden * hidden * item_N
    moved = weights + batch * hidden * (gates + 2.0) * item_N
    vector = (roof.path == VECTOR_PATH) & narrow
    n, k = np.where(backward, hidden, gates * hidden), np.where(backward, gates * hidden, hidden)

    def product(
        m: Floats, n: Floats, k: Floats, traffic: Floats, splits: tuple[int, ...]
    ) -> Floats:
        out = np.empty(len(table))
        capacity = (cache_mib(device) or 1.0) * 2**20
        for on_vector in (False, True):
            at = np.flatnonzero(vector == on_vector)
            if len(at):
                products = Products(
                    m=m[at], n=n[at], k=k[at], batch=np.ones(len(at)), step=STEP_BYTES / item_N[at],
                    traffic=traffic[at], flop_per_us=rate[at],
                    log_reuse=np.log(traffic[at] / capacity),
                )  # fmt: skip
                tiles = VECTOR_TILES if on_vector else TILES
                out[at] = tiled_us(products, device, tiles=tiles, splits=splits)
        return out

    whole = product(batch, n, k, moved, WHOLE)
    step = product(batch, n, k, moved, SPLITS) if narrow else whole
    rows = steps * batch
    states = rows * hidden * (gates + 2.0) * item_N
    # the gradient of the data alone has as many FLOPs as the forward
    both_gradients = backward & (table.flops > 3.0 * rows * gates * hidden**2 * layers * both)
    over = product(gates * hidden, hidden, rows, weights + states, SPLITS)
    beside = layers * both * np.where(both_gradients, over, 0.0)
    size = np.maximum(d("input_size"), 1.0)
    inputs = product(rows, gates * hidden, size, weights / hidden * size + states, SPLITS)
    met = np.where(d("input_size") > 0, both * inputs, 0.0)
    later = (layers - 1.0) * both * product(
        rows, gates * hidden, both * hidden, weights * both + states, SPLITS
    )  # fmt: skip
    beside = beside + (met + later) * np.where(both_gradients, 2.0, 1.0)
    total = layers * both * steps * (step + STEP_US) + beside + CALL_US
    bandwidth = sustained_bw_gbps(device, mem_bw_gbps(device))
    return Recurrent(
        total_us=total, step_us=step, whole_us=whole, beside_us=beside,
        stream_us=weights / bandwidth * 1e-3,
    )  # fmt: skip
