"""Node features: named, versioned columns that carry a mechanism each.

Everything is dimensionless or a logarithm. The raw device vector is left out on purpose: with few
devices it identifies them instead of describing them (leave-one-device-out error doubled with it).
A device acts through its rooflines, its unit count and its cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.features.context import NAMES as CONTEXT_NAMES
from predictor.features.context import context_values
from predictor.features.reuse import log_reuse
from predictor.features.roofline import (
    LAUNCH_US,
    Roofline,
    is_depthwise,
    op_class_of,
    roofline,
)
from predictor.features.table import CONTEXTS, OP_NAMES, KernelTable
from predictor.features.tiles import STEP_BYTES, Products, tiled_us
from predictor.graph.ir import DTYPE_BYTES, HALVES
from predictor.graph.ops import OPS, TOKENS
from predictor.hardware.device import Device, Software
from predictor.hardware.sustained import cache_mib

FEATURES_VERSION = 1
"""Grows when a column changes its meaning: older checkpoints are refused. A column that is added
leaves it as it is: they predict without it."""
TILES: tuple[tuple[int, int, float], ...] = (
    (128, 128, 1.0), (128, 64, 0.92), (64, 64, 0.82), (32, 32, 0.55),
)  # fmt: skip
"""Candidate output tiles (rows, columns) of a library GEMM, with the share of the unit's rate that
such a tile can feed."""

FUSED_ATTENTION_MINOR = 14.0
"""PyTorch 2.0, the first with a fused attention call: before it, its parts ran one by one."""
WIDEST_DEPTHWISE = 7
"""Largest window that libraries have channels-last kernels for with one channel a group; beyond,
such convolutions took 4 to 5 times as long (convmixer, mixnet, focalnet)."""
MINOR_CENTRE = 18.0
"""PyTorch 2.4: what an unknown release is taken for."""

_STATEFUL = {"latent": "latent_attention", "delta_rule": "delta_rule", "ssd": "ssd"}
"""Columns of attention ops that share the token of plain attention."""

_TOKEN_OF_OP = np.array([TOKENS.index(OPS[name].token) for name in OP_NAMES], dtype=np.int64)
_BINARY = np.array([OP_NAMES.index(name) for name in ("add", "mul", "div", "pow")])

COLUMNS: tuple[str, ...] = (
    "log_compute_over_memory", "log_base_us", "log_flops", "log_bytes", "log_cache_ratio",
    "cache_known", "log_elements_per_unit", "log_rows_per_unit", "log_cols", "is_gemm",
    "log_m", "log_n", "log_k", "log_batch", "tile128_loss", "tile128x64_loss", "tile64_loss",
    "tile32_loss", "best_tile_loss", "log_tiles_per_unit", "split_k_room", "m_odd", "n_odd",
    "k_odd", "m_mod32", "n_mod32", "k_mod32", "bias", "log_window", "pointwise_conv",
    "winograd_like", "log_c_in", "log_spatial", "inputs", "isolated", "boost_room",
    "boost_room_x_time", "half_precision", "log_write_share", "log_launches", "broadcast",
    "int_pipe", "compiled", "channels_last", "release", "scripted_attention", "depthwise",
    "log_stride", "n_mod8", "k_mod8", "bf16", "depthwise_wide",
    "grouped", "group_uneven",
    "log_tiled", "log_reuse", "log_weight_in_cache", "log_rows_in_cache",
    "log_group", "causal", "log_window_share", "log_query_tiles", "log_kv_blocks", "log_v_share",
    "latent", "delta_rule", "ssd", "moe", "quantize", "log_topk", "log_experts", "log_active",
    "log_expert_rows", "gates", "log_inter", *CONTEXT_NAMES,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFeatures:
    """Inputs of the network for N kernels."""

    x: NDArray[np.float32]
    """(N, len(COLUMNS))"""
    token: NDArray[np.int64]
    """Index into `TOKENS`."""
    roofline: Roofline


def columns_hash(columns: Sequence[str] = COLUMNS, tokens: Sequence[str] = TOKENS) -> str:
    """Hash of column names, tokens and version: a checkpoint states it, loading compares it."""
    text = f"{FEATURES_VERSION}|{','.join(columns)}|{','.join(tokens)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def node_features(table: KernelTable, device: Device, software: Software) -> NodeFeatures:
    """Features of every kernel on one device.

    Raises:
        UnsupportedPrecision, UnknownRateError: see `roofline`.
    """
    roof = roofline(table, device, software)
    m, n, k, batch = gemm_view(table)
    gemm = m > 0
    columns = {
        **_size_columns(table, roof, device),
        **_gemm_columns(m, n, k, batch, gemm, device),
        **_conv_columns(table),
        **_context_columns(table, roof, device),
        **_software_columns(table, software),
        **_residency_columns(table, roof, device, software),
        **_attention_columns(table, device),
        **_expert_columns(table),
        **{name: np.full(len(table), v) for name, v in context_values(software).items()},
    }
    columns["is_gemm"] = gemm.astype(float)
    columns["bias"] = (table.op == OP_NAMES.index("linear")).astype(float)
    x = np.stack([columns[name] for name in COLUMNS], axis=1).astype(np.float32)
    return NodeFeatures(x=x, token=token_of(table), roofline=roof)


def token_of(table: KernelTable) -> NDArray[np.int64]:
    """Index into `TOKENS` of every kernel."""
    return np.asarray(_TOKEN_OF_OP[table.op])


def scalar_argument(table: KernelTable) -> NDArray[np.float32]:
    """1 where a binary elementwise op has one tensor operand: the host then wraps a number."""
    binary = np.isin(table.op, _BINARY)
    return np.asarray(binary & (table.dim("inputs") == 1), dtype=np.float32)


def gemm_view(table: KernelTable) -> tuple[NDArray[np.float64], ...]:
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


def _log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.log(np.maximum(x, 1e-6)))


def _log1(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.log(np.maximum(x, 1.0)))


def _size_columns(
    table: KernelTable, roof: Roofline, device: Device
) -> dict[str, NDArray[np.float64]]:
    units = float(device.units or 64)
    traffic = table.read_bytes + table.write_bytes
    rows, cols, numel = table.dim("rows"), table.dim("cols"), table.dim("numel")
    elements = np.where(rows > 0, np.maximum(rows, 1) * np.maximum(cols, 1), numel)
    ratio = roof.cache_ratio
    known = np.isfinite(ratio)
    safe_ratio = np.where(known, ratio, 1.0)
    return {
        "log_compute_over_memory": np.clip(_log(roof.compute_us) - _log(roof.memory_us), -6, 6),
        "log_base_us": _log(roof.base_us),
        "log_flops": _log1(table.flops) / 4,
        "log_bytes": _log1(traffic) / 4,
        "log_cache_ratio": np.clip(_log(safe_ratio), -8, 5),
        "cache_known": known.astype(float),
        "log_elements_per_unit": np.clip(_log(elements / (units * 2048)), -6, 6),
        "log_rows_per_unit": np.where(rows > 0, np.clip(_log(rows / units), -5, 9), 0.0),
        "log_cols": np.where(cols > 0, _log1(cols), 0.0),
        "inputs": np.maximum(table.dim("inputs"), 0.0),
        "log_write_share": np.clip(_log(table.write_bytes / np.maximum(traffic, 1.0)), -6, 0),
        "log_launches": _log1(table.launches.astype(float)),
        "broadcast": _broadcast(table),
    }


def _broadcast(table: KernelTable) -> NDArray[np.float64]:
    """1 where an elementwise kernel expands an operand: it then loses vectorised loads."""
    item = np.array([DTYPE_BYTES.get(str(t), 4.0) for t in np.unique(table.dtype)])
    bytes_per = item[np.unique(table.dtype, return_inverse=True)[1]]
    inputs, numel = table.dim("inputs"), table.dim("numel")
    full = np.maximum(inputs, 1) * numel * bytes_per
    expands = (inputs >= 2) & (numel > 0) & (table.read_bytes < 0.7 * full)
    return np.asarray(expands, dtype=np.float64)


def _gemm_columns(
    m: NDArray[np.float64],
    n: NDArray[np.float64],
    k: NDArray[np.float64],
    batch: NDArray[np.float64],
    gemm: NDArray[np.bool_],
    device: Device,
) -> dict[str, NDArray[np.float64]]:
    """Tile and wave quantisation per candidate tile: log(scheduled work / useful work)."""
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
    on = gemm.astype(float)
    out = {
        "log_m": _log1(m), "log_n": _log1(n), "log_k": _log1(k), "log_batch": _log1(batch),
        "best_tile_loss": np.clip(best, 0, 8) * on,
        "log_tiles_per_unit": np.clip(np.log(tiles64 / units), -6, 8) * on,
        "split_k_room": np.clip(_log1(k) - np.log(64.0), 0, 8)
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


def _residency_columns(
    table: KernelTable, roof: Roofline, device: Device, software: Software
) -> dict[str, NDArray[np.float64]]:
    """Where operands come from, and the time of a product that is cut into tiles (`tiles.py`)."""
    m, n, k, batch = gemm_view(table)
    gemm = (m > 0) & np.isin(op_class_of(table), ("matmul", "grouped_matmul", "conv"))
    item = np.array([DTYPE_BYTES.get(str(t), 4.0) for t in np.unique(table.dtype)])
    item_N = item[np.unique(table.dtype, return_inverse=True)[1]]
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
    transform = roof.base_us[at] - LAUNCH_US * np.maximum(table.launches[at], 1)
    transform = transform - np.maximum(roof.compute_us, roof.memory_us)[at]
    time = time + np.maximum(transform, 0.0)
    out["log_tiled"][at] = np.clip(np.log(time / roof.base_us[at]), -2.0, 2.5)
    return out


def _cache_share(amount: NDArray[np.float64], capacity: float) -> NDArray[np.float64]:
    """log(bytes / cache), within 6; 0 where either is not known."""
    if not capacity:
        return np.zeros(len(amount))
    share = np.clip(np.log(np.maximum(amount, 1.0) / capacity), -6.0, 6.0)
    return np.asarray(np.where(amount > 0, share, 0.0))


def _attention_columns(table: KernelTable, device: Device) -> dict[str, NDArray[np.float64]]:
    """How attention spreads over the units: tiles of queries, blocks of keys, shared heads."""
    on = (op_class_of(table) == "attention").astype(float)
    units = float(device.units or 64)
    d = table.dim
    heads, queries = np.maximum(d("heads"), 1.0), np.maximum(d("q_len"), 1.0)
    keys, batch = np.maximum(d("kv_len"), 1.0), np.maximum(d("batch"), 1.0)
    kv_heads = np.where(d("kv_heads") > 0, d("kv_heads"), heads)
    window = np.where(d("window") > 0, d("window"), keys)
    width = np.maximum(d("head_dim"), 1.0)
    values = np.where(d("v_head_dim") > 0, d("v_head_dim"), width)
    return {
        "log_group": np.log(heads / kv_heads) * on,
        "causal": (d("causal") == 1) * on,
        "log_window_share": np.log(np.minimum(window, keys) / keys) * on,
        "log_query_tiles": np.log(batch * heads * np.ceil(queries / 128.0) / units) * on,
        "log_kv_blocks": np.log(batch * kv_heads * np.ceil(keys / 128.0) / units) * on,
        "log_v_share": np.log(values / width) * on,
        **{name: (table.op == OP_NAMES.index(op)).astype(float) for name, op in _STATEFUL.items()},
    }


def _expert_columns(table: KernelTable) -> dict[str, NDArray[np.float64]]:
    """Experts of a grouped product: how many, how many are met, how many rows meet each."""
    on = (op_class_of(table) == "grouped_matmul").astype(float)
    d = table.dim
    groups = np.maximum(d("groups"), 1.0)
    active = np.where(d("active") > 0, d("active"), groups)
    return {
        "moe": (table.op == OP_NAMES.index("moe")).astype(float),
        "quantize": (table.op == OP_NAMES.index("quantize")).astype(float),
        "log_topk": _log1(d("topk")) * on,
        "log_experts": _log1(np.maximum(d("experts"), groups)) * on,
        "log_active": _log1(active) * on,
        "log_expert_rows": np.log(np.maximum(d("m"), 1.0) / active) * on,
        "gates": np.maximum(d("gates"), 0.0) * on,
        "log_inter": _log1(d("inter_size")) * on,
    }


def _conv_columns(table: KernelTable) -> dict[str, NDArray[np.float64]]:
    conv = op_class_of(table) == "conv"
    d = table.dim
    on = conv.astype(float)
    window = np.maximum(d("kh"), 1) * np.maximum(d("kw"), 1)
    stride = np.maximum(d("h_in"), 1) / np.maximum(d("h_out"), 1)
    depthwise = is_depthwise(table)
    grouped = (d("groups") > 1) & ~depthwise
    width = np.maximum(d("c_in"), 1) / np.maximum(d("groups"), 1)  # libraries unroll powers of two
    return {
        "log_window": np.log(window) * on,
        "pointwise_conv": (window == 1) * on,
        "winograd_like": ((d("kh") == 3) & (d("kw") == 3) & (stride < 1.5)) * on,
        "log_c_in": _log1(d("c_in") / np.maximum(d("groups"), 1)) * on,
        "log_spatial": _log1(d("h_out") * d("w_out")) * on,
        "depthwise": depthwise * on,
        "grouped": grouped * on,
        "group_uneven": (grouped & (np.exp2(np.rint(np.log2(width))) != width)) * on,
        "depthwise_wide": (depthwise & (d("kh") > WIDEST_DEPTHWISE)) * on,
        "log_stride": np.log(np.maximum(stride, 1.0)) * on,
    }


def _context_columns(
    table: KernelTable, roof: Roofline, device: Device
) -> dict[str, NDArray[np.float64]]:
    isolated = table.context == CONTEXTS.index("isolated")
    n = len(table)
    return {
        "isolated": isolated.astype(float),
        "boost_room": roof.starve * isolated,
        "boost_room_x_time": roof.starve * isolated * (_log(roof.base_us) - 8.0),
        "half_precision": np.isin(table.dtype, HALVES).astype(float),
        "int_pipe": np.full(n, _integer_pipe(device)),
    }


def _software_columns(table: KernelTable, software: Software) -> dict[str, NDArray[np.float64]]:
    """What the framework decides: compiler, memory format, release."""
    minor = _pytorch_minor(software)
    n = len(table)
    half = np.isin(table.dtype, HALVES)
    return {
        "compiled": np.full(n, float(software.mode == "compiled")),
        "channels_last": np.full(n, float(software.memory_format == "channels_last")),
        "release": np.full(n, (minor - MINOR_CENTRE) / 10.0),
        "scripted_attention": np.full(n, float(minor < FUSED_ATTENTION_MINOR)),
        "bf16": (half & (table.dtype == "bf16")).astype(float),
    }


def _pytorch_minor(software: Software) -> float:
    """Releases of PyTorch counted on: 1.13 is 13, 2.0 is 14; unknown is the centre."""
    version = (software.framework_version or "").split(".")
    if software.framework != "pytorch" or len(version) < 2:
        return MINOR_CENTRE
    if not (version[0].isdigit() and version[1].isdigit()):
        return MINOR_CENTRE
    return float(version[1]) + (14.0 if int(version[0]) >= 2 else 0.0)


def _integer_pipe(device: Device) -> float:
    """Share of fp32 lanes with an integer pipe beside them: address arithmetic then issues free.

    NVIDIA: none up to Pascal, one a lane on Volta, Turing and GA100, half on Hopper and on the
    consumer parts since Ampere (whose second fp32 path shares the integer one).
    """
    if device.vendor != "nvidia" or device.compute_capability is None:
        return 0.5
    major, _, minor = device.compute_capability.partition(".")
    if int(major) < 7:
        return 0.0
    return 1.0 if int(major) == 7 or (major, minor) == ("8", "0") else 0.5
