"""Rooflines of a kernel table on one device: the physical floor and the sustained time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.features.table import OP_NAMES, KernelTable
from predictor.graph.ops import OPS
from predictor.hardware.device import Device, Software
from predictor.hardware.peaks import (
    arithmetic_dtype,
    max_clock_peak_tflops,
    mem_bw_gbps,
    peak_tflops,
)
from predictor.hardware.sustained import (
    cache_bw_gbps,
    cache_mib,
    power_capped_tflops,
    sustained_bw_gbps,
    sustained_tflops,
)

BOUNDS: tuple[str, ...] = ("compute", "memory", "launch")
LAUNCH_US = 2.0
"""Least device time of a launched kernel: start, drain and the gap to the next one."""
CACHE_USABLE = 0.7
"""Share of the cache that a kernel's operands can hold on to."""

_CLASS_OF_OP = np.array([OPS[name].op_class for name in OP_NAMES])


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Times of N kernels, microseconds, before any learned efficiency."""

    floor_us: NDArray[np.float64]
    """FLOPs / peak at the highest clock or bytes / peak bandwidth, whichever is larger. The bytes
    count only where the operands exceed the cache, the FLOPs of a dense fp32 convolution by what
    the fastest algorithm needs."""
    datasheet_us: NDArray[np.float64]
    """max(FLOPs / peak, bytes / peak bandwidth): the textbook roofline, a baseline."""
    compute_us: NDArray[np.float64]
    """FLOPs / sustained rate."""
    memory_us: NDArray[np.float64]
    """Bytes / sustained bandwidth, cache hits served at cache bandwidth."""
    base_us: NDArray[np.float64]
    """max(compute, memory) + launches x launch time: what the network's ratio multiplies."""
    starve: NDArray[np.float64]
    """log(peak rate / power-capped rate), 0 where power does not bind."""
    cache_ratio: NDArray[np.float64]
    """Bytes / cache capacity (NaN when the capacity is unknown)."""
    bound: NDArray[np.str_]
    path: NDArray[np.str_]
    """Dtype of the hardware path that the arithmetic takes: `tf32` for an fp32 convolution on
    matrix units; empty for work without arithmetic."""


def op_class_of(table: KernelTable) -> NDArray[np.str_]:
    """Op class of every row."""
    return np.asarray(_CLASS_OF_OP[table.op])


def roofline(table: KernelTable, device: Device, software: Software) -> Roofline:
    """Roofline times of every row.

    Raises:
        UnsupportedPrecision: a row's dtype has no path on the device.
        UnknownRateError: the device's bandwidth or a needed peak is unknown.
    """
    classes = op_class_of(table)
    n = len(table)
    peak = np.full(n, np.nan)
    top = np.full(n, np.nan)
    sustained = np.full(n, np.nan)
    starve = np.zeros(n)
    path = np.full(n, "", dtype="<U8")
    keys = np.char.add(np.char.add(classes, "|"), table.dtype)
    for key in np.unique(keys):
        op_class, dtype = str(key).split("|")
        rows = keys == key
        if not (table.flops[rows] > 0).any():
            peak[rows] = top[rows] = sustained[rows] = np.inf
            continue
        rate = peak_tflops(device, op_class=op_class, dtype=dtype, software=software)
        peak[rows] = rate
        top[rows] = max_clock_peak_tflops(device, op_class=op_class, dtype=dtype, software=software)
        kind = arithmetic_dtype(device, op_class=op_class, dtype=dtype, software=software)
        path[rows] = kind
        sustained[rows] = sustained_tflops(device, rate, kind)
        capped = power_capped_tflops(device, kind)
        if np.isfinite(rate) and np.isfinite(capped):
            starve[rows] = max(0.0, float(np.log(rate / capped)))
    dram = mem_bw_gbps(device)
    traffic = table.read_bytes + table.write_bytes
    cache = cache_mib(device)
    ratio = traffic / (cache * 2**20) if cache else np.full(n, np.nan)
    hit = 1.0 / (1.0 + (ratio / CACHE_USABLE) ** 4) if cache else np.zeros(n)
    slow, fast = sustained_bw_gbps(device, dram), cache_bw_gbps(device, dram)
    memory_us = traffic * ((1.0 - hit) / slow + hit / fast) * 1e-3
    compute_us = table.flops / sustained * 1e-6
    floor_memory = np.where(np.nan_to_num(ratio, nan=np.inf) > 1.0, traffic / dram * 1e-3, 0.0)
    floor_us = np.maximum(table.flops / top / _saving(table, classes, path) * 1e-6, floor_memory)
    work = np.maximum(compute_us, memory_us)
    launch = LAUNCH_US * np.maximum(table.launches, 1)
    bound = np.where(compute_us >= memory_us, "compute", "memory")
    bound = np.where(work < launch, "launch", bound)
    return Roofline(
        floor_us=floor_us,
        datasheet_us=np.maximum(table.flops / peak * 1e-6, traffic / dram * 1e-3),
        compute_us=compute_us,
        memory_us=memory_us,
        base_us=work + launch,
        starve=starve,
        cache_ratio=np.asarray(ratio),
        bound=bound,
        path=path,
    )


def _saving(
    table: KernelTable, classes: NDArray[np.str_], path: NDArray[np.str_]
) -> NDArray[np.float64]:
    """How many fewer multiplications an fp32 convolution may need than the direct one.

    Winograd's F(4x4, 3x3) saves 4 of the direct products and FFT algorithms a similar factor at
    larger windows (Lavin and Gray 2015); library kernels use them for dense windows of 3x3 and
    more. Measured rows reach 0.45 of the direct floor.
    """
    window = table.dim("kh") * table.dim("kw")
    dense = (classes == "conv") & (table.dim("groups") == 1) & (window >= 9) & (path == "fp32")
    return np.where(dense, 4.0, 1.0)
