"""Time of a convolution by the algorithms that libraries choose from.

* Implicit product: the window is gathered while a tile is computed. Forward and the gradient of the
  input walk all of k in one tile; the gradient of the weights sums over all output positions, which
  is split. Matrix units take channels by `CHANNELS` a load: fewer are padded.
* Winograd F(4x4, 3x3): 36 products of a quarter of the multiplications, between transforms that
  write and read whole images (Lavin and Gray 2015). On vector lanes, windows of 3x3, stride 1.

The products are timed by the tile model (`tiles.py`). A gradient has another product than its
forward: m, n and k change places.

Legend: N convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping
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

CHANNELS: Mapping[str, float] = {"fp16": 8.0, "bf16": 8.0, "fp8": 16.0, "int8": 4.0, "tf32": 4.0}
"""Input channels that a load takes at least, by hardware path."""
WINOGRAD_TILE = 4.0
WINOGRAD_PRODUCTS = (WINOGRAD_TILE + 2.0) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolutions:
    """Times of N convolutions, microseconds, and the product that each is."""

    implicit_us: Floats
    winograd_us: Floats
    """Infinite where it does not apply."""
    m: Floats
    n: Floats
    k: Floats
    padded: Floats
    """Input channels as computed over those that there are."""

    @property
    def best_us(self) -> Floats:
        """The faster algorithm's."""
        return np.minimum(self.implicit_us, self.winograd_us)


def convolutions(table: KernelTable, roof: Roofline, device: Device) -> Convolutions:
    """Times by algorithm.

    Args:
        table: N convolutions, none of them with one channel a group.
        roof: of these rows.
        device: a GPU whose number of units is known.
    """
    d = table.dim
    item_N = item_bytes(table)
    forward, gradient, weights = (
        table.op == OP_NAMES.index(name) for name in ("conv", "conv_dgrad", "conv_wgrad")
    )
    groups = np.maximum(d("groups"), 1.0)
    c_in, c_out, window = d("c_in") / groups, d("c_out") / groups, d("kh") * d("kw")
    stride = np.maximum(np.rint(d("h_in") / np.maximum(d("h_out"), 1.0)), 1.0)
    least = np.array([CHANNELS.get(str(p), 1.0) for p in roof.path])
    padded = np.ceil(c_in / least) * least
    places = d("batch") * d("h_out") * d("w_out")
    m = np.where(forward, places, np.where(gradient, places * stride**2, c_out))
    n = np.where(forward, c_out, np.where(gradient, c_in, padded * window))
    k = np.where(forward, padded * window, np.where(gradient, c_out * window / stride**2, places))
    rate = table.flops / roof.compute_us
    skipped = 1.0 - np.minimum(d("kh") / stride, 1.0)  # rows that no window covers
    image = places * stride**2 * d("c_in") * item_N
    traffic = table.read_bytes + table.write_bytes
    traffic = traffic - np.where(gradient, 0.0, skipped * image)
    traffic = np.maximum(traffic, 0.25 * (table.read_bytes + table.write_bytes))
    implicit = np.empty(len(table))
    vector = roof.path == VECTOR_PATH
    for on_vector in (False, True):
        for split in (False, True):
            at = np.flatnonzero((vector == on_vector) & (weights == split))
            if len(at):
                implicit[at] = tiled_us(
                    _products(m[at], n[at], np.maximum(k[at], 1.0), groups[at], item_N[at],
                              traffic[at], rate[at], device),
                    device, tiles=VECTOR_TILES if on_vector else TILES,
                    splits=SPLITS if split else WHOLE,
                )  # fmt: skip
    winograd = np.full(len(table), np.inf)
    fits = vector & (d("kh") == 3) & (d("kw") == 3) & (stride == 1) & (groups == 1)
    at = np.flatnonzero(fits)
    if len(at):
        tiles = (
            d("batch") * np.ceil(d("h_out") / WINOGRAD_TILE) * np.ceil(d("w_out") / WINOGRAD_TILE)
        )
        tiles, ci, co = tiles[at], c_in[at], c_out[at]
        between = WINOGRAD_PRODUCTS * 4.0 * (tiles * ci + tiles * co + ci * co)
        wm = np.where(weights[at], co, tiles)
        wn = np.where(forward[at], co, ci)
        wk = np.where(forward[at], ci, np.where(gradient[at], co, tiles))
        many = np.full(len(at), WINOGRAD_PRODUCTS)
        products = _products(wm, wn, wk, many, item_N[at], between, rate[at], device)
        streamed = (traffic[at] + between) / sustained_bw_gbps(device, mem_bw_gbps(device)) * 1e-3
        winograd[at] = tiled_us(products, device, tiles=VECTOR_TILES) + streamed
    return Convolutions(
        implicit_us=implicit, winograd_us=winograd, m=m, n=n, k=k, padded=padded / c_in
    )


def _products(
    m: Floats, n: Floats, k: Floats, batch: Floats, item: Floats, traffic: Floats, rate: Floats,
    device: Device,
) -> Products:  # fmt: skip
    """Products whose operands are reused as soon as they have all passed."""
    capacity = (cache_mib(device) or 1.0) * 2**20
    return Products(
        m=m, n=n, k=k, batch=batch, step=STEP_BYTES / item, traffic=traffic, flop_per_us=rate,
        log_reuse=np.log(np.maximum(traffic, 1.0) / capacity),
    )  # fmt: skip
