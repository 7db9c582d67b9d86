"""Scaled-dot-product attention as one op a call and phase: `predictor.sdpa[_backward]`.

Below autograd the call decomposes by device; a device with fused attention launches one kernel,
so the call is taken where the program makes it and its shape recorded.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from predictor.capture.composite import apply
from predictor.capture.recorder import Recorder

# B batch, H query heads, G key/value heads, L query length, S key length, D head size


def attention(
    recorder: Recorder,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Record one call of `scaled_dot_product_attention` and return its meta output.

    Raises:
        RuntimeError: for operands that PyTorch refuses too.
    """
    _check(query, key, value, attn_mask, is_causal=is_causal, enable_gqa=enable_gqa)
    attrs: dict[str, object] = {
        "batch": math.prod(_leading(query, key, value)),
        "heads": _heads(query),
        "kv_heads": _heads(key),
        "q_len": query.shape[-2],
        "kv_len": key.shape[-2],
        "head_dim": query.shape[-1],
        "v_head_dim": value.shape[-1],
        "causal": bool(is_causal),
        "dropout_p": float(dropout_p),
        "has_mask": attn_mask is not None,
    }
    operands = [t for t in (query, key, value, attn_mask) if t is not None]
    trains = torch.is_grad_enabled() and any(t.requires_grad for t in operands)
    return apply(_Attention, recorder, attrs, trains, *operands)  # type: ignore[no-any-return]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, recorder: Recorder, attrs: dict[str, object], trains: bool, *operands: Any
    ) -> torch.Tensor:
        query, _, value = operands[:3]
        shape = (*_leading(*operands[:3]), *query.shape[-3:-1], value.shape[-1])
        if query.dim() < 4:
            shape = (*_leading(*operands[:3]), query.shape[-2], value.shape[-1])
        with recorder.pause():
            out = _like(query, shape)
            statistics = out.new_empty(shape[:-1], dtype=torch.float32)
        outputs = [out, statistics] if trains else [out]
        recorder.record("predictor.sdpa", operands, outputs, dict(attrs))
        ctx.recorder, ctx.attrs = recorder, attrs
        ctx.save_for_backward(*operands, out, statistics)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        recorder: Recorder = ctx.recorder
        *operands, out, statistics = ctx.saved_tensors
        needed = ctx.needs_input_grad[3:]
        with recorder.pause():
            made = [
                torch.empty_like(t) if wanted or i < 3 else None
                for i, (t, wanted) in enumerate(zip(operands, needed, strict=True))
            ]
        recorder.record(
            "predictor.sdpa_backward",
            [grads[0], *operands, out, statistics],
            [g for g in made if g is not None],
            dict(ctx.attrs),
        )
        results = [g if w else None for g, w in zip(made, needed, strict=True)]
        return (None, None, None, *results)


def _heads(tensor: torch.Tensor) -> int:
    return tensor.shape[-3] if tensor.dim() >= 4 else 1


def _leading(*operands: torch.Tensor) -> tuple[int, ...]:
    """Broadcast batch dimensions."""
    return tuple(
        torch.broadcast_shapes(*(t.shape[:-3] if t.dim() >= 4 else t.shape[:-2] for t in operands))
    )


def _like(query: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """An output in the memory order of the query, as the fused kernels give it."""
    if tuple(query.shape) == shape:
        return torch.empty_like(query)
    order = sorted(range(query.dim()), key=lambda d: (query.stride(d), -d), reverse=True)
    if query.dim() != len(shape):
        return query.new_empty(shape)
    dense = query.new_empty([shape[d] for d in order])
    return dense.permute([order.index(d) for d in range(len(shape))])


def _check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    is_causal: bool,
    enable_gqa: bool,
) -> None:
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if min(t.dim() for t in (query, key, value)) < 2:
        raise RuntimeError(f"attention needs operands of at least two dimensions: {shapes}")
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise RuntimeError(f"attention operands do not fit together: {shapes}")
    if len({query.dtype, key.dtype, value.dtype}) > 1:
        dtypes = f"{query.dtype}, {key.dtype}, {value.dtype}"
        raise RuntimeError(f"attention operands differ in dtype: {dtypes}")
    heads, kv_heads = _heads(query), _heads(key)
    if kv_heads != _heads(value):
        raise RuntimeError(f"key and value differ in heads: {shapes}")
    grouped = enable_gqa and heads % kv_heads == 0
    if heads != kv_heads and not grouped and 1 not in (heads, kv_heads):
        raise RuntimeError(
            f"{heads} query heads and {kv_heads} key heads need enable_gqa=True: {shapes}"
        )
    if is_causal and mask is not None:
        raise RuntimeError("attention takes either attn_mask or is_causal, not both")
    if mask is not None:
        target = (*_leading(query, key, value), heads, query.shape[-2], key.shape[-2])
        torch.broadcast_shapes(mask.shape, target)
