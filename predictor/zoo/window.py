"""Attention over a sliding window of keys, as Mistral is run.

Half precision takes FlashAttention, which skips what lies outside the window; fp32 has no such
kernel and takes the whole square under a mask.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# B batch, H query heads, G key/value heads, S sequence, D head size

HALF = (torch.float16, torch.bfloat16)


def half_dtype(x: Tensor) -> torch.dtype | None:
    """The half-precision dtype that attention on x runs in, None for full precision."""
    if torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda")
    return x.dtype if x.dtype in HALF else None


def windowed_attention(q_BHSD: Tensor, k_BGSD: Tensor, v_BGSD: Tensor, window: int) -> Tensor:
    """Causal attention in which a query sees `window` keys, itself included: `[B, H, S, D]`."""
    half = half_dtype(q_BHSD)
    if half is None:
        groups = q_BHSD.shape[1] // k_BGSD.shape[1]
        return functional.scaled_dot_product_attention(
            q_BHSD,
            k_BGSD.repeat_interleave(groups, dim=1),
            v_BGSD.repeat_interleave(groups, dim=1),
            attn_mask=window_mask(q_BHSD.shape[2], window, q_BHSD),
        )
    q, k, v = (t.transpose(1, 2).to(half) for t in (q_BHSD, k_BGSD, v_BGSD))
    length = q.shape[1]
    out: Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, None, None, length, length, 0.0, True, False,
        window_size_left=window - 1, window_size_right=0,
    )[0]  # fmt: skip
    return out.transpose(1, 2)


def window_mask(length: int, window: int, like: Tensor) -> Tensor:
    """`[1, 1, S, S]`, true where a query (row) sees a key (column)."""
    at = torch.arange(length, device=like.device)
    behind = at[:, None] - at[None, :]
    return ((behind >= 0) & (behind < window))[None, None]
