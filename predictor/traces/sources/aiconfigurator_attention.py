"""Readers of aiconfigurator's attention: softmax, latent (MLA) and stateful (GDN, Mamba-2).

| table | op | dimensions |
|---|---|---|
| context_attention | `attention` | isl queries after step cached keys, causal, window |
| generation_attention | `attention` | one query, isl + step keys, window |
| encoder_attention | `attention` | isl queries and keys, no mask |
| context_mla | `attention` | keys of 192 (128 + 64 rotated), values of 128, a key head a head |
| context_mla, absorbed kernels | `latent_attention` | keys of 576 (512 + 64), values of 512 |
| generation_mla | `latent_attention` | the same, one query, isl + step keys |
| gdn, mamba2: causal_conv1d | `conv` | depthwise, one axis; an update reads d_conv positions |
| gdn: gated delta rule | `delta_rule` | state of head_k_dim x head_v_dim a value head |
| mamba2: scan, state update | `ssd` | state of d_state x head_dim a head, B and C a group |

The widths are DeepSeek-V2/V3's (qk_nope_head_dim 128, qk_rope_head_dim 64, v_head_dim 128,
kv_lora_rank 512), the only ones that the publisher's collectors run. `num_heads` is a rank's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from predictor.hardware.device import Device
from predictor.traces.sources.aiconfigurator_chunk import Chunk, Kernels, Numbers, Refused, Rows
from predictor.traces.sources.aiconfigurator_formats import (
    FORMATS,
    Format,
    cache_scheme,
    on_device,
)

PREFILL_DIMS: Mapping[str, int] = {"head_dim": 192, "v_head_dim": 128}
LATENT_DIMS: Mapping[str, int] = {"head_dim": 576, "v_head_dim": 512}
ABSORBED_PREFILL = ("flash_attention", "triton")
"""SGLang's MLA kernels off Blackwell: they attend to the latents in prefill too."""
NARROW_MATH = ("default", "trtllm_mla")
"""MLA kernels that compute in fp8 when the cache is fp8, from Hopper on (on Blackwell they pass
the bf16 peak; on Ampere and Ada both caches take the same time)."""
FULL = -1
"""No window; published as 0."""


def context_attention(chunk: Chunk) -> Iterator[Kernels | Refused]:
    """Prefill with grouped key-value heads."""
    isl = chunk.numbers("isl")
    yield from _softmax(chunk, isl, isl + chunk.numbers("step", 0), chunk.numbers(_KV))


def generation_attention(chunk: Chunk) -> Iterator[Kernels | Refused]:
    """Decode: one query a sequence."""
    keys = chunk.numbers("isl") + chunk.numbers("step")
    yield from _softmax(chunk, np.ones_like(keys), keys, chunk.numbers(_KV))


def encoder_attention(chunk: Chunk) -> Iterator[Kernels | Refused]:
    """Every query sees every key."""
    isl = chunk.numbers("isl")
    yield from _softmax(chunk, isl, isl, chunk.numbers("num_heads"), causal=0)


_KV = "num_key_value_heads"


def _softmax(
    chunk: Chunk, queries: Numbers, keys: Numbers, kv_heads: Numbers, *, causal: int = 1
) -> Iterator[Kernels | Refused]:
    window = chunk.numbers("window_size", 0)
    columns = {
        "batch": chunk.numbers("batch_size"), "heads": chunk.numbers("num_heads"),
        "kv_heads": kv_heads, "q_len": queries, "kv_len": keys,
        "head_dim": chunk.numbers("head_dim"), "window": np.where(window > 0, window, FULL),
    }  # fmt: skip
    names = ("attn_dtype", "kv_cache_dtype") if chunk.has("kv_cache_dtype") else ("attn_dtype",)
    for values, rows in chunk.split(*names):
        dtype, cache = values[0], values[-1]
        if dtype not in FORMATS or cache not in FORMATS:
            yield _unknown(rows, names[0] if dtype not in FORMATS else names[-1], values)
            continue
        yield Kernels(
            rows=rows, op="attention", form=_form(dtype, cache, chunk.device),
            dims={**{name: values[rows] for name, values in columns.items()}, "causal": causal},
        )  # fmt: skip


def context_mla(chunk: Chunk) -> Iterator[Kernels | Refused]:
    """Prefill with DeepSeek's latent attention."""
    isl = chunk.numbers("isl")
    keys = isl + chunk.numbers("step", 0)
    for (kernel, dtype, cache), rows in chunk.split("kernel_source", "mla_dtype", "kv_cache_dtype"):
        if dtype not in FORMATS or cache not in FORMATS:
            yield _unknown(rows, "kv_cache_dtype" if dtype in FORMATS else "mla_dtype", cache)
            continue
        dims = _mla_dims(chunk, rows, isl, keys)
        absorbed = kernel in ABSORBED_PREFILL and chunk.table.framework == "sglang"
        own = {} if absorbed else {"kv_heads": dims["heads"]}
        yield Kernels(
            rows=rows, op="latent_attention" if absorbed else "attention",
            form=_mla_form(kernel, dtype, cache, chunk.device),
            dims={**dims, **own, **(LATENT_DIMS if absorbed else PREFILL_DIMS)},
        )  # fmt: skip


def generation_mla(chunk: Chunk) -> Iterator[Kernels | Refused]:
    """Decode with DeepSeek's latent attention."""
    keys = chunk.numbers("isl") + chunk.numbers("step")
    for (kernel, dtype, cache), rows in chunk.split("kernel_source", "mla_dtype", "kv_cache_dtype"):
        if dtype not in FORMATS or cache not in FORMATS:
            yield _unknown(rows, "kv_cache_dtype" if dtype in FORMATS else "mla_dtype", cache)
            continue
        yield Kernels(
            rows=rows, op="latent_attention",
            form=_mla_form(kernel, dtype, cache, chunk.device),
            dims={**_mla_dims(chunk, rows, np.ones_like(keys), keys), **LATENT_DIMS},
        )  # fmt: skip


def _mla_dims(
    chunk: Chunk, rows: Rows, queries: Numbers, keys: Numbers
) -> dict[str, Numbers | int]:
    return {
        "batch": chunk.numbers("batch_size")[rows], "heads": chunk.numbers("num_heads")[rows],
        "q_len": queries[rows], "kv_len": keys[rows], "causal": 1,
    }  # fmt: skip


def _form(dtype: str, cache: str, device: Device) -> Format:
    arithmetic = on_device(FORMATS[dtype], device).dtype
    stored = FORMATS[cache].stored_bytes
    return Format(dtype=arithmetic, stored_bytes=stored, scheme=cache_scheme(cache))


def _mla_form(kernel: str, dtype: str, cache: str, device: Device) -> Format:
    hopper = float(device.compute_capability or 0) >= 9
    narrow = kernel in NARROW_MATH and FORMATS[cache].dtype == "fp8" and hopper
    return _form(cache if narrow else dtype, cache, device)


def gdn(chunk: Chunk) -> Iterator[Kernels | Refused]:
    """Kernels of a gated-delta-net layer: its convolution over q, k and v, and its recurrence.

    TensorRT-LLM's tables and SGLang's of 0.5.10 convolve the keys alone: their times do not depend
    on the value heads (counted over q, k and v they would pass the memory bandwidth threefold).
    """
    key = chunk.numbers("num_k_heads") * chunk.numbers("head_k_dim")
    value = chunk.numbers("num_v_heads") * chunk.numbers("head_v_dim")
    state = {
        "heads": chunk.numbers("num_v_heads"), "kv_heads": chunk.numbers("num_k_heads"),
        "head_dim": chunk.numbers("head_k_dim"), "v_head_dim": chunk.numbers("head_v_dim"),
    }  # fmt: skip
    key_only = (chunk.table.framework, chunk.table.version) in _KEY_CONVOLUTIONS or (
        chunk.table.framework == "trtllm"
    )
    channels = key if key_only else 2 * key + value
    yield from _stateful(chunk, channels, "delta_rule", _DELTA, state)


def mamba2(chunk: Chunk) -> Iterator[Kernels | Refused]:
    """Kernels of a Mamba-2 layer: its convolution over x, B and C, and its recurrence."""
    state = {
        "heads": chunk.numbers("nheads"), "kv_heads": chunk.numbers("n_groups"),
        "head_dim": chunk.numbers("d_state"), "v_head_dim": chunk.numbers("head_dim"),
    }  # fmt: skip
    channels = state["heads"] * state["v_head_dim"] + 2 * state["kv_heads"] * state["head_dim"]
    yield from _stateful(chunk, channels, "ssd", _SSD, state)


_KEY_CONVOLUTIONS = frozenset({("sglang", "0.5.10")})
_CONV = ("causal_conv1d",)
_DELTA = (
    "chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule",
    "fused_sigmoid_gating_delta_rule",
)  # fmt: skip
_SSD = ("mamba_chunk_scan", "selective_state_update")
_EAGER = ("vllm", "gdn", "causal_conv1d_fn")
"""vLLM's packed prefill convolution cannot be captured in a graph: its rows ran eagerly."""


def _stateful(
    chunk: Chunk, channels: Numbers, op: str, kernels: tuple[str, ...], state: Mapping[str, Numbers]
) -> Iterator[Kernels | Refused]:
    batch, steps, taps = (chunk.numbers(c) for c in ("batch_size", "seq_len", "d_conv"))
    for (kernel, phase), rows in chunk.split("kernel_source", "phase"):
        if kernel.startswith(_CONV):
            update = phase == "generation"
            size = {"h_in": taps if update else steps, "h_out": np.ones_like(steps)}
            if not update:
                size["h_out"] = steps
            eager = (chunk.table.framework, chunk.table.kind, kernel) == _EAGER
            yield Kernels(
                rows=rows, op="conv", form=FORMATS["bfloat16"],
                dims={
                    "batch": batch[rows], "c_in": channels[rows], "c_out": channels[rows],
                    "groups": channels[rows], "kh": taps[rows], "w_in": 1, "w_out": 1, "kw": 1,
                    **{name: values[rows] for name, values in size.items()},
                },
                context="isolated" if eager else "device",
                execution="eager" if eager else "cuda_graph",
            )  # fmt: skip
        elif kernel.startswith(kernels):
            dims = {name: values[rows] for name, values in state.items()}
            yield Kernels(
                rows=rows, op=op, form=FORMATS["bfloat16"],
                dims={"batch": batch[rows], "q_len": steps[rows], **dims},
            )  # fmt: skip
        else:
            yield Refused(rows=rows, column="kernel_source", value=kernel, rule="unknown_op")


def _unknown(rows: Rows, column: str, value: object) -> Refused:
    return Refused(rows=rows, column=column, value=value, rule="unknown_format")
