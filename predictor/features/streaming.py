"""Column of what caches leave of a streaming kernel's traffic: a prior of the network's ratio.

A kernel timed in a loop finds its operands where the last call left them, and in a step the kernel
before has just written them. Loops of elementwise calls (NeuSight, fp32) say how much has room. On
T4 and P4 nothing of the traffic reaches DRAM up to the size of the cache, a third of it is spared
at 1.1 times and a tenth at 1.7 times that size. An A100, whose cache is two halves that each keep
copies of the other's lines, is as good up to 0.7 of its cache and streams everything from 0.85 on.

A block of a layer norm reads its row twice. The second read is spared where the rows in flight fit
beside what is written: large norms take 1.03 times their traffic on an A100 with rows of 4 KiB and
1.5 times from 16 KiB on, a T4 1.1 and 1.6 times with rows of 4 and 12 KiB.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from predictor.features.roofline import LAUNCH_US, Roofline, op_class_of
from predictor.features.table import OP_NAMES, KernelTable, item_bytes
from predictor.graph.ir import PHASES
from predictor.hardware.device import Device
from predictor.hardware.peaks import mem_bw_gbps
from predictor.hardware.sustained import cache_bw_gbps, cache_mib, sustained_bw_gbps

STREAMING_COLUMNS: tuple[str, ...] = ("log_streamed",)
CLASSES: tuple[str, ...] = ("elementwise", "reduction", "softmax", "norm", "gather", "copy")
TWICE_READ: tuple[str, ...] = ("layer_norm", "rms_norm")
SPLIT_CAPABILITIES = ("8.0", "9.0", "10.0", "10.3")
"""Chips whose cache is two halves: GA100, GH100, and the two dies of GB100 and GB110."""
SPLIT_SHARE = 0.73
"""Share of such a cache that holds operands of its own."""
SHARPNESS = 10.0
"""Power by which hits fade beyond the capacity: all operands are passed in turn."""
SHARPNESS_ROWS = 4.0
"""The same for rows in flight, whose blocks are not in step."""
NORM_THREADS = 128
"""Threads of a block of a layer norm (PyTorch, one row a block)."""
THREADS = 2048
THREADS_OF = {"7.5": 1024, "8.6": 1536, "8.9": 1536, "12.0": 1536, "12.1": 1536}
"""Resident threads of a multiprocessor, where they are not `THREADS` (CUDA C++ guide)."""
LIMIT = 4.0


def streaming_columns(
    table: KernelTable, roof: Roofline, device: Device
) -> dict[str, NDArray[np.float64]]:
    """`log_streamed`: log(time with what the cache spares and norms read again / roofline's).

    0 for kernels with matrix arithmetic, for other vendors than NVIDIA (two AMD GPUs with 8 MiB
    show no hits between calls) and where the cache is unknown.
    """
    out = np.zeros(len(table))
    cache = cache_mib(device)
    at = np.flatnonzero(np.isin(op_class_of(table), CLASSES))
    if device.kind == "gpu" and device.vendor == "nvidia" and cache and len(at):
        split = device.compute_capability in SPLIT_CAPABILITIES
        share = SPLIT_SHARE if split else 1.0
        time = _streamed_us(table.take(at), roof.take(at), device, cache * 2**20, share)
        out[at] = np.clip(np.log(time / roof.base_us[at]), -LIMIT, LIMIT)
    return {"log_streamed": out}


def _streamed_us(
    table: KernelTable, roof: Roofline, device: Device, cache: float, share: float
) -> NDArray[np.float64]:
    dram = mem_bw_gbps(device)
    slow, fast = sustained_bw_gbps(device, dram), cache_bw_gbps(device, dram)
    traffic = table.read_bytes + table.write_bytes
    hit = _held(traffic / (share * cache), SHARPNESS)
    again = table.read_bytes * (1.0 - _held(_in_flight(table, device) / cache, SHARPNESS_ROWS))
    missed = (traffic + again) * (1.0 - hit)
    memory_us = (missed / slow + traffic * hit / fast) * 1e-3
    launch_us = LAUNCH_US * np.maximum(table.launches, 1)
    return np.asarray(np.maximum(roof.compute_us, memory_us) + launch_us)


def _held(filled: NDArray[np.float64], sharpness: float) -> NDArray[np.float64]:
    """Share of the traffic that stays, by traffic over capacity."""
    return np.asarray(1.0 / (1.0 + np.minimum(filled, 1e6) ** sharpness))


def _in_flight(table: KernelTable, device: Device) -> NDArray[np.float64]:
    """Bytes that blocks of a norm read and write at a time; 0 for other kernels."""
    forward = table.phase == PHASES.index("forward")
    norm = np.isin(table.op, [OP_NAMES.index(op) for op in TWICE_READ]) & forward
    threads = THREADS_OF.get(device.compute_capability or "", THREADS)
    blocks = float(device.units or 0) * threads / NORM_THREADS
    rows = np.minimum(np.maximum(table.dim("rows"), 0.0), blocks)
    return np.where(norm, 2.0 * rows * table.dim("cols") * item_bytes(table), 0.0)
