"""Readers of aiconfigurator's matrix products and experts.

| table | op | dimensions |
|---|---|---|
| gemm | `matmul` | m, n, k as published, no bias |
| mla_bmm | `bmm` | one product a head: pre m x 128 by 128 x 512, post m x 512 by 512 x 128 |
| moe, wideep_moe | `moe` | rows and active experts of the measured rank: `aiconfigurator_routing` |
| scale_matrix | `quantize` | m rows of k, bf16 to fp8 |

128 is DeepSeek's width of a head without position (and of a value head), 512 its latent rank
(DeepSeek-V2, table of hyper-parameters).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from predictor.traces.sources.aiconfigurator_chunk import Chunk, Kernels, Numbers, Refused, Rows
from predictor.traces.sources.aiconfigurator_formats import FORMATS, Format, on_device
from predictor.traces.sources.aiconfigurator_routing import is_known, rank_load

HEAD, LATENT = 128, 512
_BMM = {"mla_gen_pre": (LATENT, HEAD), "mla_gen_post": (HEAD, LATENT)}
"""n and k by the product's name."""
_DEQUANTISED = "_dequant_bf16"
"""Kernels with this in their name turn narrow weights into bf16 first."""
WARM_FORMATS = ("fp8_block", "nvfp4")
"""vLLM timed these with one copy of the weight (the others rotate copies beyond the cache)."""

PLAIN_EXPERTS: frozenset[tuple[int, int, int, int]] = frozenset({
    (1024, 2688, 22, 512), (2048, 5120, 22, 512), (2688, 1856, 6, 128), (4096, 2688, 22, 512),
    (8192, 5120, 22, 512),
})  # fmt: skip
"""Layers (hidden, inner, topk, experts) of the Nemotron-3 models: squared ReLU, no gate.

TensorRT-LLM says so in the kernel's name; the others time the same layers (gated, they would pass
the memory bandwidth)."""


def gemm(chunk: Chunk) -> Iterator[Kernels | Refused]:
    """Products of an activation and a weight."""
    m, n, k = (chunk.numbers(c) for c in "mnk")
    for (name,), rows in chunk.split("gemm_dtype"):
        form = _known(chunk, name)
        if form is None:
            yield _unknown(rows, "gemm_dtype", name)
            continue
        warm = (
            chunk.table.framework == "vllm" and name in WARM_FORMATS
            and _fits_cache(chunk, np.multiply(n[rows] * k[rows], form.stored_bytes, dtype=float))
        )  # fmt: skip
        yield Kernels(
            rows=rows, op="matmul", form=form, flag=warm, flag_name="cache_warm",
            dims={"batch": 1, "m": m[rows], "n": n[rows], "k": k[rows]},
        )  # fmt: skip


def mla_bmm(chunk: Chunk) -> Iterator[Kernels | Refused]:
    """Products that absorb MLA's up-projections, a weight a head."""
    tokens, heads = chunk.numbers("num_tokens"), chunk.numbers("num_heads")
    for (name, kernel, dtype), rows in chunk.split("op_name", "kernel_source", "bmm_dtype"):
        form = _known(chunk, dtype)
        if form is None or name not in _BMM:
            yield _unknown(rows, "bmm_dtype" if form is None else "op_name", (name, dtype))
            continue
        n, k = _BMM[name]
        if _DEQUANTISED in kernel:
            form = Format(dtype="bf16", stored_bytes=form.stored_bytes, scheme=form.scheme)
        yield Kernels(
            rows=rows, op="bmm", form=form,
            dims={"batch": heads[rows], "m": tokens[rows], "n": n, "k": k},
        )  # fmt: skip


def scale_matrix(chunk: Chunk) -> Iterator[Kernels | Refused]:
    """Quantisation of a matrix with a given scale."""
    m, k = chunk.numbers("m"), chunk.numbers("k")
    for (name,), rows in chunk.split("quant_dtype"):
        if name not in FORMATS:
            yield _unknown(rows, "quant_dtype", name)
            continue
        form = Format(dtype="bf16", stored_bytes=2, scheme=FORMATS[name].scheme)
        yield Kernels(
            rows=rows, op="quantize", form=form, dims={"rows": m[rows], "cols": k[rows]},
            output_bytes=FORMATS[name].stored_bytes,
        )  # fmt: skip


def moe(chunk: Chunk) -> Iterator[Kernels | Refused]:
    """Experts of one rank, given all tokens of its group."""
    slots, tokens = chunk.numbers("num_experts"), chunk.numbers("num_tokens")
    yield from _experts(chunk, slots, tokens, filtered=False)


def wideep_moe(chunk: Chunk) -> Iterator[Kernels | Refused]:
    """The same with replicated experts (slots); only the tokens that meet the rank come in."""
    slots, tokens = chunk.numbers("num_slots"), chunk.numbers("rank0_num_tokens")
    yield from _experts(chunk, slots, tokens, filtered=True)


def _experts(
    chunk: Chunk, slots: Numbers, tokens_in: Numbers, *, filtered: bool
) -> Iterator[Kernels | Refused]:
    hidden, inner = chunk.numbers("hidden_size"), chunk.numbers("inter_size")
    topk, experts = chunk.numbers("topk"), chunk.numbers("num_experts")
    tp = np.maximum(chunk.numbers("moe_tp_size"), 1)
    ranks = np.maximum(chunk.numbers("moe_ep_size"), 1)
    tokens = chunk.numbers("num_tokens")
    plain = _plain(hidden, inner, topk, experts)
    for (name, kernel, routing), rows in chunk.split("moe_dtype", "kernel_source", "distribution"):
        form = _known(chunk, name)
        if form is None or not is_known(routing):
            column = "moe_dtype" if form is None else "distribution"
            yield _unknown(rows, column, name if form is None else routing)
            continue
        group = {
            "tokens": tokens[rows], "topk": topk[rows], "experts": slots[rows],
            "ranks": ranks[rows],
        }  # fmt: skip
        pairs, active = rank_load(group, routing)
        if filtered:  # each token that came in meets an expert here
            pairs = np.where(pairs > 0, np.maximum(pairs, tokens_in[rows]), pairs)
        gates = np.where(plain[rows] | ("nongated" in kernel), 1, 2)
        yield Kernels(
            rows=rows, op="moe", form=form, routing=routing,
            dims={
                "tokens": tokens_in[rows], "groups": slots[rows] // ranks[rows], "m": pairs,
                "n": inner[rows] // tp[rows], "k": hidden[rows], "gates": gates, "active": active,
                "topk": topk[rows], "experts": experts[rows], "inter_size": inner[rows],
            },
        )  # fmt: skip


def _plain(hidden: Numbers, inner: Numbers, topk: Numbers, experts: Numbers) -> NDArray[np.bool_]:
    found = np.zeros(len(hidden), dtype=bool)
    for h, i, t, e in PLAIN_EXPERTS:
        found |= (hidden == h) & (inner == i) & (topk == t) & (experts == e)
    return found


def _known(chunk: Chunk, name: str) -> Format | None:
    return on_device(FORMATS[name], chunk.device) if name in FORMATS else None


def _unknown(rows: Rows, column: str, value: object) -> Refused:
    rules = {"op_name": "unknown_op", "distribution": "unknown_routing"}
    return Refused(rows=rows, column=column, value=value, rule=rules.get(column, "unknown_format"))


def _fits_cache(chunk: Chunk, weight_bytes: NDArray[np.float64]) -> NDArray[np.bool_] | bool:
    """Whether a weight stays in the cache between calls; yes where the cache is unknown."""
    cache = chunk.device.l2_mib
    return True if cache is None else weight_bytes < cache * 2**20
