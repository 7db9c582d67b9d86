"""Time of a matrix product from the way libraries cut it: tiles, splits of k, waves, residency.

A library kernel gives each unit tiles of the output; a product may also be split along k, its
parts added up afterwards. For every candidate (tile, split) three times are known: the units'
arithmetic in whole waves, operands from memory at what so many active units draw, operands through
the last-level cache. The latest of them (smoothly) plus start costs is the candidate's time, and
the library is taken to choose the best. No constant is a device's own: one set for all, fitted to
the training part (split `unseen-nk`) of bf16 products of TensorRT-LLM on eight GPUs, on which the
model is 11% off (docs/experiments.md).

Legend: N products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.hardware.device import Device
from predictor.hardware.peaks import mem_bw_gbps
from predictor.hardware.sustained import cache_bw_gbps, sustained_bw_gbps

Floats = NDArray[np.float64]

TILES: tuple[tuple[int, int, float], ...] = (
    (256, 128, 0.90), (128, 256, 1.14), (128, 128, 1.09), (128, 64, 0.94), (64, 128, 0.78),
    (64, 64, 0.63), (64, 32, 0.38), (64, 16, 0.21), (64, 8, 0.11), (128, 192, 1.05),
    (192, 128, 1.11),
)  # fmt: skip
"""Rows, columns, and the rate that the tile feeds relative to `RATE`."""
VECTOR_TILES: tuple[tuple[int, int, float], ...] = (
    (128, 128, 1.09), (256, 128, 1.10), (128, 256, 1.10), (128, 64, 0.94), (64, 128, 0.94),
    (64, 64, 0.85), (128, 32, 0.88), (32, 128, 0.88), (64, 32, 0.42), (32, 64, 0.42),
    (64, 16, 0.28), (16, 64, 0.28), (64, 8, 0.14), (8, 64, 0.14),
)  # fmt: skip
"""The same on vector lanes, which a tile of 32 columns still feeds: a matrix unit it does not. The
widest and the 32 wide were fitted to fp32 products of cuBLAS 10 (DeepBench: V100, T4), on which the
times are then 10% off instead of 26%."""
SPLITS: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 16)
WHOLE: tuple[int, ...] = (1,)
"""No split: what kernels that add nothing up afterwards can do."""
RATE = 0.844
"""Share of the sustained rate that a tile of relative rate one reaches."""
BANDWIDTH = 0.873
"""Share of the sustained bandwidth."""
STEP_BYTES = 128.0
"""Bytes along k that a tile takes at a time."""
STEP_CLOCKS, TILE_CLOCKS, SPLIT_CLOCKS, START_CLOCKS = 89.0, 1_646.0, 5_322.0, 2_913.0
"""Least clocks of one such step; of a tile's start and end; of adding up a split; of a launch."""
DRAW, CACHE_DRAW = 0.985, 0.507
"""Share of the units that must be active to draw all bandwidth of the memory, and of the cache."""
CACHE_RATE = 2.63
"""Cache bandwidth over `cache_bw_gbps`: operands of one wave are shared by multicast and L1."""
RESIDENT_RATE = 0.196
"""Share of the cache's bandwidth at which resident operands stream."""
RESIDENT_EDGE, RESIDENT_SLOPE = 0.05, 19.4
"""Log of reuse bytes over the cache where half is resident, and how sharp the edge is."""
SMOOTH = 6.26
"""Exponent of the smooth maximum."""
USUAL_CLOCK_MHZ = 1_900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """N matrix products as a library sees them."""

    m: Floats
    n: Floats
    k: Floats
    batch: Floats
    step: Floats
    """Elements along k of `STEP_BYTES`."""
    traffic: Floats
    """Bytes read and written at least."""
    flop_per_us: Floats
    """Sustained rate of the whole device."""
    log_reuse: Floats
    """log(bytes between two uses of an operand / cache)."""


def tiled_us(
    products: Products,
    device: Device,
    *,
    tiles: Sequence[tuple[int, int, float]] = TILES,
    splits: Sequence[int] = SPLITS,
) -> Floats:
    """(N,) time of each product, microseconds: the best candidate, launch included.

    Args:
        products: on a GPU whose number of units is known.
        device: with a memory bandwidth.
        tiles: candidates of the library.
        splits: into how many parts it may split k.

    Raises:
        UnknownRateError: the device's bandwidth is not known.
    """
    units = float(device.units or 1)
    us_per_clock = 1.0 / (device.clock_boost_mhz or USUAL_CLOCK_MHZ)
    dram = mem_bw_gbps(device)
    cache = cache_bw_gbps(device, dram)
    sustained = sustained_bw_gbps(device, dram)
    memory = sustained * BANDWIDTH * _resident(products.log_reuse, cache, sustained)
    best = np.full(len(products.m), np.inf)
    for rows, columns, relative in tiles:
        across = np.ceil(products.m / rows) * np.ceil(products.n / columns) * products.batch
        flop = 2.0 * rows * columns * products.step
        step_us = flop * units / (products.flop_per_us * RATE * relative)
        step_us = np.maximum(step_us, STEP_CLOCKS * us_per_clock)
        for split in splits:
            steps = np.ceil(products.k / split / products.step)
            parts = across * split
            active = np.minimum(parts, units)
            arithmetic = np.ceil(parts / units) * (steps * step_us + TILE_CLOCKS * us_per_clock)
            drawn = memory * np.minimum(1.0, active / (units * DRAW))
            moved = products.traffic / drawn * 1e-3
            operands = parts * (rows + columns) * steps * STEP_BYTES
            drawn = cache * CACHE_RATE * np.minimum(1.0, active / (units * CACHE_DRAW))
            through = operands / drawn * 1e-3
            worst = np.maximum(np.maximum(arithmetic, moved), through)
            ratio = np.stack([arithmetic, moved, through]) / worst
            time = worst * (ratio**SMOOTH).sum(0) ** (1.0 / SMOOTH)
            if split > 1:
                partial = 8.0 * split * products.m * products.n * products.batch
                time = time + SPLIT_CLOCKS * us_per_clock + partial / (cache * CACHE_RATE) * 1e-3
                time = np.where((split - 1) * steps >= products.k / products.step, np.inf, time)
            best = np.minimum(best, time)
    return np.asarray(best + START_CLOCKS * us_per_clock)


def _resident(log_reuse: Floats, cache_gbps: float, memory_gbps: float) -> Floats:
    """How much faster than from memory operands stream, for what of them the cache still holds."""
    held = 1.0 / (1.0 + np.exp(np.clip((log_reuse - RESIDENT_EDGE) * RESIDENT_SLOPE, -60, 60)))
    gain = max(0.0, RESIDENT_RATE * cache_gbps / memory_gbps - 1.0)
    return np.asarray(1.0 + gain * held)
