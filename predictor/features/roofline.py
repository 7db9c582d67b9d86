"""Rooflines of a kernel table on one device: the physical floor and the sustained time."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from predictor.features.table import OP_NAMES, KernelTable
from predictor.graph.ir import HALVES
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
TPU_LAUNCH_US = 0.5
"""The same on a TPU, where kernels of one program follow each other without a scheduler: the
shortest measured ones take 0.55 (v6e) and 0.6 us (v3)."""
CACHE_USABLE = 0.7
"""Share of the cache that a kernel's operands can hold on to."""
MATRIX_CHANNELS = 8.0
"""Input and output channels of a group that a matrix instruction takes at least: fewer are padded
(NVIDIA PTX, `mma` shape m16n8k8)."""
LOADS_PER_FMA = 0.25
"""Share of the vector rate of a convolution with one channel a group: each multiply-add loads its
own operand, and a unit has a quarter as many load lanes as multiply-add lanes."""

VECTOR_PATH = "fp32"
"""`Roofline.path` of matrix work on vector lanes."""

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
    transform_us: NDArray[np.float64]
    """`_transform_traffic` at sustained bandwidth."""
    base_us: NDArray[np.float64]
    """max(compute, memory) + transform + launches x launch time: what the network's ratio
    multiplies."""
    starve: NDArray[np.float64]
    """log(peak rate / power-capped rate), 0 where power does not bind."""
    cache_ratio: NDArray[np.float64]
    """Bytes / cache capacity (NaN when the capacity is unknown)."""
    bound: NDArray[np.str_]
    path: NDArray[np.str_]
    """Dtype of the hardware path that the arithmetic takes: `tf32` for an fp32 convolution on
    matrix units; empty for work without arithmetic."""

    def take(self, index: NDArray[np.intp]) -> Roofline:
        """The rows at `index`."""
        return Roofline(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


def op_class_of(table: KernelTable) -> NDArray[np.str_]:
    """Op class of every row."""
    return np.asarray(_CLASS_OF_OP[table.op])


def launch_us(device: Device) -> float:
    """Least device time of a launched kernel, microseconds."""
    return TPU_LAUNCH_US if device.kind == "tpu" else LAUNCH_US


def is_depthwise(table: KernelTable) -> NDArray[np.bool_]:
    """(N,) convolutions with one input channel a group; only rows of class conv are told."""
    groups = table.dim("groups")
    return np.asarray((groups > 1) & (groups == table.dim("c_in")))


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
    if device.kind == "gpu":
        sustained = _grouped_rate(table, classes, sustained, device, software)
    dram = mem_bw_gbps(device)
    traffic = table.read_bytes + table.write_bytes
    cache = cache_mib(device)
    ratio = traffic / (cache * 2**20) if cache else np.full(n, np.nan)
    hit = 1.0 / (1.0 + (ratio / CACHE_USABLE) ** 4) if cache else np.zeros(n)
    slow, fast = sustained_bw_gbps(device, dram), cache_bw_gbps(device, dram)
    us_per_byte = ((1.0 - hit) / slow + hit / fast) * 1e-3
    memory_us = traffic * us_per_byte
    transform_us = us_per_byte * _transform_traffic(table, classes, device, software)
    compute_us = table.flops / sustained * 1e-6
    floor_memory = np.where(np.nan_to_num(ratio, nan=np.inf) > 1.0, traffic / dram * 1e-3, 0.0)
    floor_us = np.maximum(table.flops / top / _saving(table, classes, path) * 1e-6, floor_memory)
    work = np.maximum(compute_us, memory_us) + transform_us
    launch = launch_us(device) * np.maximum(table.launches, 1)
    bound = np.where(compute_us >= memory_us, "compute", "memory")
    bound = np.where(work < launch, "launch", bound)
    return Roofline(
        floor_us=floor_us,
        datasheet_us=np.maximum(table.flops / peak * 1e-6, traffic / dram * 1e-3),
        compute_us=compute_us,
        memory_us=memory_us,
        transform_us=transform_us,
        base_us=work + launch,
        starve=starve,
        cache_ratio=np.asarray(ratio),
        bound=bound,
        path=path,
    )


def _grouped_rate(
    table: KernelTable,
    classes: NDArray[np.str_],
    sustained: NDArray[np.float64],
    device: Device,
    software: Software,
) -> NDArray[np.float64]:
    """The sustained rates, those of grouped convolutions by what their few channels leave.

    The better of two paths: matrix instructions padded with zeros, or vector lanes, which loads
    bound where a group has one channel.
    """
    rows = np.flatnonzero((classes == "conv") & (table.dim("groups") > 1))
    if not len(rows):
        return sustained
    groups = table.dim("groups")[rows]
    c_in, c_out = table.dim("c_in")[rows] / groups, table.dim("c_out")[rows] / groups
    filled = np.minimum(c_in / MATRIX_CHANNELS, 1.0) * np.minimum(c_out / MATRIX_CHANNELS, 1.0)
    lanes = peak_tflops(device, op_class="elementwise", dtype="fp32", software=software)
    vector = sustained_tflops(device, lanes, "fp32")
    if not np.isfinite(vector):
        return sustained
    loads = np.where(c_in == 1, LOADS_PER_FMA, 1.0)
    out = sustained.copy()
    out[rows] = np.minimum(sustained[rows], np.maximum(sustained[rows] * filled, vector * loads))
    return out


def _transform_traffic(
    table: KernelTable, classes: NDArray[np.str_], device: Device, software: Software
) -> NDArray[np.float64]:
    """Bytes that cuDNN moves to turn contiguous half-precision images into channels-last and back.

    Its matrix kernels take channels-last: each image is read and written once more, in and out, by
    kernels of their own. Measured: such convolutions, where memory bounds them, take about three
    times the traffic of the same ones in a compiled graph, which runs in channels-last. Those with
    one channel a group have kernels for the contiguous format.
    """
    contiguous = software.memory_format == "contiguous" and device.vendor == "nvidia"
    dense = (classes == "conv") & ~is_depthwise(table)
    rows = dense & np.isin(table.dtype, HALVES) & contiguous
    return np.where(rows, 2.0 * (table.read_bytes + table.write_bytes), 0.0)


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
