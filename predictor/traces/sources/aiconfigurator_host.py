"""Products whose time is the host's: kernels that were launched one by one, slower than they run.

vLLM's block-scaled fp8 products take 55 to 290 us at least, whatever their size, where the other
formats of the same tables take 2 to 8 us: quantisation and launch through Python, without a graph.
A time near that floor tells nothing of the device; well above it the device is the later one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from predictor.errors import UnknownRateError, UnsupportedPrecision
from predictor.hardware.device import Device, Software
from predictor.hardware.peaks import max_clock_peak_tflops, mem_bw_gbps

HOST_BOUND = "host_bound"
FLOOR_QUANTILE = 0.01
"""Quantile of the times of one kernel that is their floor: single rows may be misread."""
FLOOR_US = 40.0
"""No launch takes a device so long: a floor above it is the host's."""
SMALL_SHARE = 0.1
"""Share of the floor below which the smallest product must lie: else it is size that takes long."""
NEAR = 2.0
"""Up to this many floors the host may decide; where device and floor are equal it is 1.5 to 2."""


def host_bound(
    latency_us: NDArray[np.float64],
    flops: NDArray[np.float64],
    moved_bytes: NDArray[np.float64],
    dtype: str,
    device: Device,
) -> NDArray[np.bool_]:
    """(N,) whether the host decided the time of each product of one kernel of one table.

    Args:
        latency_us: (N,) measured.
        flops: (N,) of each product.
        moved_bytes: (N,) read and written at least.
        dtype: of the arithmetic.
        device: that they ran on; with unknown rates no row is marked.
    """
    none = np.zeros(len(latency_us), dtype=bool)
    sound = np.isfinite(latency_us) & (latency_us > 0)
    if not sound.any():
        return none
    floor_us = float(np.quantile(latency_us[sound], FLOOR_QUANTILE))
    try:
        peak = max_clock_peak_tflops(device, op_class="matmul", dtype=dtype, software=Software())
        bandwidth = mem_bw_gbps(device)
    except (UnknownRateError, UnsupportedPrecision):
        return none
    least_us = np.maximum(flops / peak * 1e-6, moved_bytes / bandwidth * 1e-3)
    if floor_us < FLOOR_US or least_us[sound].min() > SMALL_SHARE * floor_us:
        return none
    return sound & (latency_us < NEAR * floor_us)
