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
from predictor.features.heads import attention_columns, expert_columns
from predictor.features.issue import ISSUE_COLUMNS, issue_columns
from predictor.features.library import LIBRARY_COLUMNS, library_columns
from predictor.features.logs import log1
from predictor.features.products import gemm_columns, gemm_view, residency_columns
from predictor.features.roofline import Roofline, is_depthwise, op_class_of, roofline
from predictor.features.serving import SERVING_COLUMNS, serving_columns
from predictor.features.streaming import STREAMING_COLUMNS, streaming_columns
from predictor.features.table import CONTEXTS, OP_NAMES, KernelTable, item_bytes
from predictor.graph.ir import HALVES
from predictor.graph.ops import OPS, TOKENS
from predictor.hardware.device import Device, Software

FEATURES_VERSION = 1
"""Grows when a column changes its meaning: older checkpoints are refused. A column that is added
leaves it as it is: they predict without it."""
FUSED_ATTENTION_MINOR = 14.0
"""PyTorch 2.0, the first with a fused attention call: before it, its parts ran one by one."""
WIDEST_DEPTHWISE = 7
"""Largest window that libraries have channels-last kernels for with one channel a group; beyond,
such convolutions took 4 to 5 times as long (convmixer, mixnet, focalnet)."""
MINOR_CENTRE = 18.0
"""PyTorch 2.4: what an unknown release is taken for."""

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
    "log_expert_rows", "gates", "log_inter", *CONTEXT_NAMES, *LIBRARY_COLUMNS,
    *SERVING_COLUMNS, *ISSUE_COLUMNS, *STREAMING_COLUMNS,
)  # fmt: skip


DEVICE_COLUMNS: tuple[str, ...] = (
    "log_compute_over_memory", "log_base_us", "log_cache_ratio", "log_elements_per_unit",
    "log_rows_per_unit", "boost_room", "log_reuse", "log_weight_in_cache", "log_rows_in_cache",
)  # fmt: skip
"""Columns that a device's rates and sizes shift by about one amount for all kernels of a kind."""


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
    view = gemm_view(table)
    residency = residency_columns(table, view, roof, device, software)
    columns = {
        **_size_columns(table, roof, device),
        **gemm_columns(view, device),
        **_conv_columns(table),
        **_context_columns(table, roof, device),
        **_software_columns(table, software),
        **residency,
        **library_columns(table, view, roof, device, software, residency),
        **serving_columns(table, roof, device, software, residency),
        **issue_columns(table, roof, device),
        **streaming_columns(table, roof, device),
        **attention_columns(table, device),
        **expert_columns(table),
        **{name: np.full(len(table), v) for name, v in context_values(software).items()},
    }
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


def _log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.log(np.maximum(x, 1e-6)))


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
        "log_flops": log1(table.flops) / 4,
        "log_bytes": log1(traffic) / 4,
        "log_cache_ratio": np.clip(_log(safe_ratio), -8, 5),
        "cache_known": known.astype(float),
        "log_elements_per_unit": np.clip(_log(elements / (units * 2048)), -6, 6),
        "log_rows_per_unit": np.where(rows > 0, np.clip(_log(rows / units), -5, 9), 0.0),
        "log_cols": np.where(cols > 0, log1(cols), 0.0),
        "inputs": np.maximum(table.dim("inputs"), 0.0),
        "log_write_share": np.clip(_log(table.write_bytes / np.maximum(traffic, 1.0)), -6, 0),
        "log_launches": log1(table.launches.astype(float)),
        "broadcast": _broadcast(table),
    }


def _broadcast(table: KernelTable) -> NDArray[np.float64]:
    """1 where an elementwise kernel expands an operand: it then loses vectorised loads."""
    bytes_per = item_bytes(table)
    inputs, numel = table.dim("inputs"), table.dim("numel")
    full = np.maximum(inputs, 1) * numel * bytes_per
    expands = (inputs >= 2) & (numel > 0) & (table.read_bytes < 0.7 * full)
    return np.asarray(expands, dtype=np.float64)


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
        "log_c_in": log1(d("c_in") / np.maximum(d("groups"), 1)) * on,
        "log_spatial": log1(d("h_out") * d("w_out")) * on,
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
        "compiled": np.full(n, float(software.by_inductor)),
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
