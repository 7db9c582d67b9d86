"""Columns of what libraries do beside the tile model.

Algorithms of convolutions, steps of recurrent layers, products on vector lanes.

`log_library` is the ratio of that time to the tile model's (`log_tiled`): the prior of the network
is their sum.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from predictor.features.convolution import convolutions
from predictor.features.logs import log1
from predictor.features.products import View
from predictor.features.recurrent import recurrent
from predictor.features.roofline import VECTOR_PATH, Roofline, is_depthwise, op_class_of
from predictor.features.table import OP_NAMES, KernelTable, item_bytes
from predictor.features.tiles import STEP_BYTES, TILES, VECTOR_TILES, Products, tiled_us
from predictor.hardware.device import Device, Software
from predictor.hardware.sustained import sustained_tflops

STEP_COLUMNS: tuple[str, ...] = (
    "log_step", "log_step_whole", "log_step_stream", "log_steps", "log_hidden", "log_step_batch",
    "recurrent_gates", "beside_share",
)  # fmt: skip
"""Of recurrent layers. Old libraries have a set of their own: what such a library did at a batch of
32 says nothing of a later one (with one set for both, a V100 unseen came out twice as slow)."""
OLD = "old_"
LIBRARY_COLUMNS: tuple[str, ...] = (
    "log_library", "int8", "log_implicit", "log_winograd", "log_own_m", "log_own_n", "log_own_k",
    "log_channel_padding", *STEP_COLUMNS, *(OLD + name for name in STEP_COLUMNS),
)  # fmt: skip
FIRST_NARROW: Mapping[str, int] = {"cudnn": 7, "miopen": 2}
"""First major release with kernels for products of few rows: cuDNN 7 comes with cuBLAS 9."""
VENDOR_CALL = "deepbench"
"""Framework of a vendor library called by itself. Its half-precision convolutions are measured to
move no image to channels-last and back, in either format (1x1 windows stream their operands at 80%
of the memory's peak, V100 and T4)."""
DOT_PRODUCT = 4.0
"""Multiply-adds of int8 that a vector lane does in place of one of fp32 (DP4A): the path of
`cublasGemmEx` in plain layouts. Matrix units want tiled operands; a T4 reaches 23 of 130 TOP/s."""
_RELEASE = re.compile(r"(cudnn|miopen) (\d+)")

Columns = dict[str, NDArray[np.float64]]


def library_columns(
    table: KernelTable,
    view: View,
    roof: Roofline,
    device: Device,
    software: Software,
    residency: Columns,
) -> Columns:
    """The columns of `LIBRARY_COLUMNS`.

    Args:
        table: N kernels.
        view: products that they are seen as.
        roof: their rooflines.
        device: where they run.
        software: which library.
        residency: columns of `residency_columns`, of which `log_tiled` and `log_reuse` are read.
    """
    out = {name: np.zeros(len(table)) for name in LIBRARY_COLUMNS}
    old = is_old(software)
    out["int8"] = (table.dtype == "int8").astype(float)
    classes = op_class_of(table)
    cells = classes == "recurrent"
    steps = {name: out[OLD * old + name] for name in STEP_COLUMNS}
    steps["log_steps"][cells] = log1(table.dim("steps"))[cells]
    steps["log_hidden"][cells] = log1(table.dim("hidden_size"))[cells]
    steps["log_step_batch"][cells] = log1(table.dim("batch"))[cells]
    steps["recurrent_gates"][cells] = table.dim("gates")[cells]
    timed = (table.flops > 0) & np.isfinite(roof.compute_us) & (roof.compute_us > 0)
    if device.kind != "gpu" or not device.units:
        return out
    dense = (classes == "matmul") & (table.op != OP_NAMES.index("sparse_mm")) & timed
    rate = table.flops / np.where(timed, roof.compute_us, np.inf)
    lanes = np.flatnonzero(dense & (roof.path == VECTOR_PATH))
    _products(out, lanes, table, view, roof, device, residency, rate, VECTOR_TILES)
    if software.framework == VENDOR_CALL and device.peak_fp32_tflops is not None:
        dot = DOT_PRODUCT * sustained_tflops(device, device.peak_fp32_tflops, "fp32") * 1e6
        narrow = np.flatnonzero(dense & (roof.path == "int8") & (rate > dot))
        _products(out, narrow, table, view, roof, device, residency, np.minimum(rate, dot), TILES)
    windows = (classes == "conv") & ~is_depthwise(table) & timed
    _convolutions(out, np.flatnonzero(windows), table, roof, device, software, residency)
    at = np.flatnonzero(cells & timed)
    if len(at):
        found = recurrent(table.take(at), roof.take(at), device, narrow=not old)
        out["log_library"][at] = _ratio(found.total_us, roof.base_us[at])
        steps["log_step"][at] = np.log(found.step_us)
        steps["log_step_whole"][at] = np.log(found.whole_us / found.step_us)
        steps["log_step_stream"][at] = np.clip(np.log(found.stream_us / found.step_us), -8.0, 1.0)
        steps["beside_share"][at] = found.beside_us / found.total_us
    return out


def is_old(software: Software) -> bool:
    """Whether a release that a vendor's benchmark names is an old one; an unknown one is not."""
    found = _RELEASE.search((software.framework_version or "").lower())
    return found is not None and int(found[2]) < FIRST_NARROW[found[1]]


def _products(
    out: Columns, at: NDArray[np.intp], table: KernelTable, view: View, roof: Roofline,
    device: Device, residency: Columns, rate: NDArray[np.float64],
    tiles: Sequence[tuple[int, int, float]],
) -> None:  # fmt: skip
    if not len(at):
        return
    m, n, k, batch = (v[at] for v in view)
    products = Products(
        m=m, n=n, k=k, batch=batch, step=STEP_BYTES / item_bytes(table)[at],
        traffic=(table.read_bytes + table.write_bytes)[at], flop_per_us=rate[at],
        log_reuse=residency["log_reuse"][at],
    )  # fmt: skip
    time = tiled_us(products, device, tiles=tiles)
    out["log_library"][at] = _ratio(time, roof.base_us[at]) - residency["log_tiled"][at]


def _convolutions(
    out: Columns, at: NDArray[np.intp], table: KernelTable, roof: Roofline, device: Device,
    software: Software, residency: Columns,
) -> None:  # fmt: skip
    if not len(at):
        return
    found = convolutions(table.take(at), roof.take(at), device)
    moved = 0.0 if software.framework == VENDOR_CALL else roof.transform_us[at]
    base = roof.base_us[at]
    out["log_library"][at] = _ratio(found.best_us + moved, base) - residency["log_tiled"][at]
    out["log_implicit"][at] = _ratio(found.implicit_us, base)
    out["log_winograd"][at] = np.clip(np.log(found.winograd_us / found.implicit_us), -3.0, 3.0)
    for name, size in (("m", found.m), ("n", found.n), ("k", found.k)):
        out[f"log_own_{name}"][at] = log1(size)
    out["log_channel_padding"][at] = np.log(found.padded)


def _ratio(time: NDArray[np.float64], base: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.clip(np.log(time / base), -3.0, 7.0))
