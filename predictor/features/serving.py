"""Columns of attention and experts as their libraries cut them: a prior of the network's ratio.

`log_serving` is the ratio of that time to the roofline, over the tile model's where it speaks of
the row too (`log_tiled`): the prior of the network is the sum of such columns.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from predictor.cost.attention import attention_pairs
from predictor.features.attention_tiles import (
    BARE,
    KERNEL,
    WHOLE,
    Attention,
    Call,
    attention_us,
    packs,
)
from predictor.features.chip import Chip, chip_of
from predictor.features.expert_tiles import DTYPE_RATES, Experts, Kind, experts_us, kind_of
from predictor.features.roofline import Roofline
from predictor.features.table import DIM_INDEX, OP_NAMES, KernelTable, item_bytes
from predictor.hardware.device import Device, Software

SERVING_COLUMNS: tuple[str, ...] = (
    "log_serving", "heads_together", "one_key", "log_tokens", "serving_release",
)  # fmt: skip
CALLS: Mapping[str, Call] = {"trtllm": WHOLE, "sglang": KERNEL, "vllm": KERNEL}
"""What a call of attention does, by framework; nothing beside attention in others."""
NARROW_CACHE = "kv_fp8"
FOUR_BITS = 0.5625
"""Bytes of an nvfp4 element with its share of the scales."""
LEAST, MOST = -3.0, 6.0
"""Ratio in logarithms that is told at most."""
CENTRE = 20.0
"""Release candidate of TensorRT-LLM 1.3 that counts as zero."""

Columns = dict[str, NDArray[np.float64]]


def serving_columns(
    table: KernelTable, roof: Roofline, device: Device, software: Software, residency: Columns
) -> Columns:
    """The columns of `SERVING_COLUMNS`.

    Args:
        table: N kernels.
        roof: their rooflines.
        device: where they run.
        software: which library.
        residency: columns of `residency_columns`, of which `log_tiled` is read.
    """
    out = {name: np.zeros(len(table)) for name in SERVING_COLUMNS}
    timed = (table.flops > 0) & np.isfinite(roof.compute_us) & (roof.compute_us > 0)
    attends = np.isin(table.op, [OP_NAMES.index(op) for op in ("attention", "latent_attention")])
    experts = table.op == OP_NAMES.index("moe")
    out["serving_release"][attends | experts] = _release(software)
    if device.kind != "gpu" or not device.units or not (timed & (attends | experts)).any():
        return out
    chip = chip_of(device)
    at = np.flatnonzero(attends & timed)
    if len(at):
        shapes = _attention(table.take(at), roof.compute_us[at], software)
        time = attention_us(shapes, chip, CALLS.get(software.framework, BARE))
        out["log_serving"][at] = _ratio(time, roof.base_us[at])
        out["heads_together"][at] = packs(shapes, chip)
        out["one_key"][at] = (shapes.keys <= 1).astype(float)
    at = np.flatnonzero(experts & timed)
    if len(at):
        time = _experts_us(table.take(at), roof.compute_us[at], chip, software)
        out["log_serving"][at] = _ratio(time, roof.base_us[at]) - residency["log_tiled"][at]
        out["log_tokens"][at] = np.log(np.maximum(table.dim("tokens")[at], 1.0))
    return out


def _ratio(time: NDArray[np.float64], base: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.clip(np.log(time / base), LEAST, MOST))


def _attention(
    table: KernelTable, compute_us: NDArray[np.float64], software: Software
) -> Attention:
    d = table.dim
    latent = table.op == OP_NAMES.index("latent_attention")
    heads, keys = np.maximum(d("heads"), 1.0), np.maximum(d("kv_len"), 1.0)
    width = np.maximum(d("head_dim"), 1.0)
    dims = {n: table.dims[:, DIM_INDEX[n]] for n in ("q_len", "kv_len", "causal", "window")}
    narrow = table.dtype == "fp8"
    cache = software.scheme == NARROW_CACHE
    own = np.where(latent, 1.0, heads)
    return Attention(
        batch=np.maximum(d("batch"), 1.0), heads=heads,
        kv_heads=np.where(d("kv_heads") > 0, d("kv_heads"), own),
        queries=np.maximum(d("q_len"), 1.0), keys=keys,
        window=np.minimum(np.where(d("window") > 0, d("window"), keys), keys),
        pairs=np.maximum(np.asarray(attention_pairs(dims), dtype=np.float64), 1.0),
        causal=(d("causal") == 1).astype(float), width=width,
        v_width=np.where(d("v_head_dim") > 0, d("v_head_dim"), width), latent=latent,
        item=np.where(narrow | cache, 1.0, item_bytes(table)), narrow=narrow,
        narrow_cache=~narrow & cache, flop_per_us=table.flops / compute_us,
    )  # fmt: skip


def _experts_us(
    table: KernelTable, compute_us: NDArray[np.float64], chip: Chip, software: Software
) -> NDArray[np.float64]:
    d = table.dim
    groups = np.maximum(d("groups"), 1.0)
    gates, hidden, inner = (np.maximum(d(n), 1.0) for n in ("gates", "k", "n"))
    rows = np.maximum(d("m"), 1.0)
    active = np.clip(np.where(d("active") > 0, d("active"), groups), 1.0, np.maximum(rows, 1.0))
    tokens = np.maximum(d("tokens"), 1.0)
    item = np.where(table.dtype == "fp4", FOUR_BITS, item_bytes(table))
    weights = table.read_bytes - np.minimum(tokens, rows) * hidden * item_bytes(table)
    elements = active * (gates + 1.0) * hidden * inner
    rate = np.array([DTYPE_RATES.get(str(name), 1.0) for name in table.dtype])
    shapes = Experts(
        rows=rows, hidden=hidden, inner=inner, gates=gates, active=active, tokens=tokens,
        experts=np.maximum(d("experts"), groups), row_item=item,
        weight_item=np.clip(weights / elements, 0.25, 8.0),
        flop_per_us=table.flops / compute_us * rate,
    )  # fmt: skip
    kind: Kind = kind_of(software.library, software.scheme)
    even = not software.routing.startswith("power_law")
    return experts_us(shapes, chip, kind, even=even)


def _release(software: Software) -> float:
    """Releases of TensorRT-LLM counted on: 1.3.0rc10 and all before is -1, 1.3.0rc20 is 0.

    Older ones are not told apart: each stands for few devices. 0 for other frameworks.
    """
    version = software.framework_version or ""
    if software.framework != "trtllm" or not version:
        return 0.0
    head, _, candidate = version.partition("rc")
    if head != "1.3.0" or not candidate.isdigit():
        return -1.0 if version < "1.3" else 0.0
    return float(np.clip((float(candidate) - CENTRE) / 10.0, -1.0, 1.0))
