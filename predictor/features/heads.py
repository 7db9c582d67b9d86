"""Columns of attention and of experts: how work spreads over heads, keys and experts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from predictor.features.logs import log1
from predictor.features.roofline import op_class_of
from predictor.features.table import OP_NAMES, KernelTable
from predictor.hardware.device import Device

_STATEFUL = {"latent": "latent_attention", "delta_rule": "delta_rule", "ssd": "ssd"}
"""Columns of attention ops that share the token of plain attention."""


def attention_columns(table: KernelTable, device: Device) -> dict[str, NDArray[np.float64]]:
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


def expert_columns(table: KernelTable) -> dict[str, NDArray[np.float64]]:
    """Experts of a grouped product: how many, how many are met, how many rows meet each."""
    on = (op_class_of(table) == "grouped_matmul").astype(float)
    d = table.dim
    groups = np.maximum(d("groups"), 1.0)
    active = np.where(d("active") > 0, d("active"), groups)
    return {
        "moe": (table.op == OP_NAMES.index("moe")).astype(float),
        "quantize": (table.op == OP_NAMES.index("quantize")).astype(float),
        "log_topk": log1(d("topk")) * on,
        "log_experts": log1(np.maximum(d("experts"), groups)) * on,
        "log_active": log1(active) * on,
        "log_expert_rows": np.log(np.maximum(d("m"), 1.0) / active) * on,
        "gates": np.maximum(d("gates"), 0.0) * on,
        "log_inter": log1(d("inter_size")) * on,
    }
