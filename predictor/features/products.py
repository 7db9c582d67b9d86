"""Columns of matrix products: tiles and waves, alignment, where operands come from.

Convolutions, attention and experts are seen as products too (`gemm_view`).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from predictor.features.logs import log1
from predictor.features.reuse import log_reuse
from predictor.features.roofline import Roofline, is_depthwise, op_class_of
from predictor.features.table import OP_NAMES, KernelTable, item_bytes
from predictor.features.tiles import STEP_BYTES, Products, tiled_us
from predictor.hardware.device import Device, Software
from predictor.hardware.sustained import cache_mib

View: TypeAlias = tuple[
    NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]
]
"""(N,) m, n, k and batch."""
TILES: tuple[tuple[int, int, float], ...] = (
    (128, 128, 1.0), (128, 64, 0.92), (64, 64, 0.82), (32, 32, 0.55),
)  # fmt: skip
"""Candidate output tiles (rows, columns) of a library GEMM, with the share of the unit's rate that
such a tile can feed."""


def gemm_view(table: KernelTable) -> View:
    """(m, n, k, batch) of matmul-like kernels, 0 elsewhere.

    Convolutions are seen as implicit GEMMs: m = batch x output positions, n = output channels,
    k = input channels x window, one batch a group. Attention is seen by its score product.
    """
    classes = op_class_of(table)
    d = table.dim
    zero = np.zeros(len(table))
    m, n, k, batch = zero.copy(), zero.copy(), zero.copy(), zero.copy()
    mm = (classes == "matmul") | (classes == "grouped_matmul")
    m[mm], n[mm], k[mm] = d("m")[mm], d("n")[mm], d("k")[mm]
    batch[mm] = np.maximum(np.maximum(d("batch"), d("groups")), 1)[mm]
    grouped = classes == "grouped_matmul"  # m counts the rows of all groups
    active = np.where(d("active") > 0, d("active"), batch)
    batch[grouped] = active[grouped]
    m[grouped] = np.ceil(m / np.maximum(active, 1.0))[grouped]
    conv = classes == "conv"
    groups = np.maximum(d("groups"), 1)
    m[conv] = (d("batch") * d("h_out") * d("w_out"))[conv]
    n[conv] = (d("c_out") / groups)[conv]
    k[conv] = (d("c_in") / groups * d("kh") * d("kw"))[conv]
    batch[conv] = groups[conv]
    att = classes == "attention"
    m[att], n[att], k[att] = d("q_len")[att], d("kv_len")[att], d("head_dim")[att]
    batch[att] = (d("batch") * d("heads"))[att]
    return m, n, k, batch


def gemm_columns(view: View, device: Device) -> dict[str, NDArray[np.float64]]:
    """Tile and wave quantisation per candidate tile: log(scheduled work / useful work)."""
    m, n, k, batch = view
    units = float(device.units or 64)
    sm, sn, sb = np.maximum(m, 1.0), np.maximum(n, 1.0), np.maximum(batch, 1.0)
    losses = []
    for tm, tn, share in TILES:
        tiles = np.ceil(sm / tm) * np.ceil(sn / tn) * sb
        waves = np.ceil(tiles / units)
        scheduled = waves * units * tm * tn / share
        losses.append(np.log(scheduled / (sm * sn * sb)))
    best = np.minimum.reduce(losses)
    tiles64 = np.ceil(sm / 64) * np.ceil(sn / 64) * sb
    on = (m > 0).astype(float)
    out = {
        "is_gemm": on,
        "log_m": log1(m), "log_n": log1(n), "log_k": log1(k), "log_batch": log1(batch),
        "best_tile_loss": np.clip(best, 0, 8) * on,
        "log_tiles_per_unit": np.clip(np.log(tiles64 / units), -6, 8) * on,
        "split_k_room": np.clip(log1(k) - np.log(64.0), 0, 8)
        * np.clip(-np.log(tiles64 / units), 0, 6) * on,
    }  # fmt: skip
    for name, loss in zip(
        ("tile128_loss", "tile128x64_loss", "tile64_loss", "tile32_loss"), losses, strict=True
    ):
        out[name] = np.clip(loss - best, 0, 4) * on
    for name, size in (("m", m), ("n", n), ("k", k)):
        out[f"{name}_odd"] = (np.mod(size, 4) != 0).astype(float) * on
        out[f"{name}_mod32"] = (np.mod(size, 32) != 0).astype(float) * on
        if name != "m":
            out[f"{name}_mod8"] = (np.mod(size, 8) != 0).astype(float) * on
    return out


def residency_columns(
    table: KernelTable, view: View, roof: Roofline, device: Device, software: Software
) -> dict[str, NDArray[np.float64]]:
    """Where operands come from, and the time of a product that is cut into tiles (`tiles.py`)."""
    m, n, k, batch = view
    gemm = (m > 0) & np.isin(op_class_of(table), ("matmul", "grouped_matmul", "conv"))
    item_N = item_bytes(table)
    rows = m * k * batch * item_N
    weight = np.where(gemm, np.maximum(table.read_bytes - rows, 0.0), 0.0)
    reuse = log_reuse(table, weight, device, software)
    capacity = (cache_mib(device) or 0.0) * 2**20
    out = {
        "log_tiled": np.zeros(len(table)), "log_reuse": reuse,
        "log_weight_in_cache": _cache_share(weight, capacity),
        "log_rows_in_cache": _cache_share(np.where(gemm, rows, 0.0), capacity),
    }  # fmt: skip
    whole = gemm & ~is_depthwise(table) & (table.op != OP_NAMES.index("sparse_mm"))
    whole &= (table.flops > 0) & np.isfinite(roof.compute_us) & (roof.compute_us > 0)
    if device.kind != "gpu" or not device.units or not whole.any():
        return out
    at = np.flatnonzero(whole)
    rate = table.flops[at] / roof.compute_us[at]
    moe = table.op[at] == OP_NAMES.index("moe")
    gates = np.where(moe, np.maximum(table.dim("gates")[at], 1.0), 1.0)
    up = Products(
        m=m[at], n=n[at] * gates, k=k[at], batch=batch[at], step=STEP_BYTES / item_N[at],
        traffic=(table.read_bytes + table.write_bytes)[at] * np.where(moe, gates / (gates + 1), 1),
        flop_per_us=rate, log_reuse=reuse[at],
    )  # fmt: skip
    time = tiled_us(up, device)
    if moe.any():  # the second product of an expert
        down = Products(
            m=m[at][moe], n=k[at][moe], k=n[at][moe], batch=batch[at][moe], step=up.step[moe],
            traffic=up.traffic[moe] / gates[moe], flop_per_us=rate[moe], log_reuse=reuse[at][moe],
        )  # fmt: skip
        time[moe] += tiled_us(down, device)
    time = time + roof.transform_us[at]
    out["log_tiled"][at] = np.clip(np.log(time / roof.base_us[at]), -2.0, 2.5)
    return out


def _cache_share(amount: NDArray[np.float64], capacity: float) -> NDArray[np.float64]:
    """log(bytes / cache), within 6; 0 where either is not known."""
    if not capacity:
        return np.zeros(len(amount))
    share = np.clip(np.log(np.maximum(amount, 1.0) / capacity), -6.0, 6.0)
    return np.asarray(np.where(amount > 0, share, 0.0))
