"""Llama and its kin: rotary positions, RMS norm, SwiGLU, grouped queries.

Llama 2 (Touvron et al. 2023), Llama 3 (Grattafiori et al. 2024), Mistral (Jiang et al. 2023, a
sliding window) and Qwen2.5 (Yang et al. 2024, biases on query, key and value).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictor.zoo.decoder import merge_heads, outputs, positions, split_heads
from predictor.zoo.window import windowed_attention


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Sizes of a Llama."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int = 128256
    rope_theta: float = 500000.0
    eps: float = 1e-5
    qkv_bias: bool = False
    window: int | None = None
    """Keys that a query sees, itself included; None for all before it."""


class LlamaRmsNorm(nn.Module):
    """RMS norm written out in fp32, as the published implementation computes it."""

    def __init__(self, hidden: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """`[..., E]` to the same."""
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x.to(dtype)


class LlamaRotary(nn.Module):
    """Cosines and sines of the rotary position embedding."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        exponent = torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim
        self.inv_freq: Tensor
        self.register_buffer("inv_freq", 1.0 / (theta**exponent), persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Position ids `[1, S]` to cosines and sines `[1, S, D]` in the dtype of x."""
        freqs = position_ids[..., None].float() * self.inv_freq.to(torch.float)
        angles = torch.cat((freqs, freqs), dim=-1)
        cos, sin = angles.cos() * 1.0, angles.sin() * 1.0
        return cos.to(x.dtype), sin.to(x.dtype)


def _rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class LlamaAttention(nn.Module):
    """Grouped-query causal attention."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.hidden // config.heads
        self.grouped = config.heads != config.kv_heads
        self.window = config.window
        queries, keys = config.heads * self.head_dim, config.kv_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden, queries, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden, keys, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden, keys, bias=config.qkv_bias)
        self.o_proj = nn.Linear(queries, config.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`[B, S, E]` to the same."""
        q, k, v = (
            split_heads(f(x), self.head_dim) for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q = (q * cos) + (_rotate_half(q) * sin)
        k = (k * cos) + (_rotate_half(k) * sin)
        if self.window is not None and x.shape[1] > self.window:
            out = windowed_attention(q, k, v, self.window)
        else:
            out = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=self.grouped
            )
        return self.o_proj(merge_heads(out))  # type: ignore[no-any-return]


class LlamaMlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.ffn, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.ffn, bias=False)
        self.down_proj = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, S, E]` to the same."""
        gated = functional.silu(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(gated)  # type: ignore[no-any-return]


class LlamaLayer(nn.Module):
    """Pre-norm decoder layer."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config)
        self.mlp = LlamaMlp(config)
        self.input_layernorm = LlamaRmsNorm(config.hidden, config.eps)
        self.post_attention_layernorm = LlamaRmsNorm(config.hidden, config.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`[B, S, E]` to the same."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """Llama with its own language-model head."""

    def __init__(self, config: LlamaConfig, layer: Callable[[], nn.Module] | None = None) -> None:
        """`layer` makes each layer of the stack where it is not `LlamaLayer`."""
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(
            [layer() if layer else LlamaLayer(config) for _ in range(config.layers)]
        )
        self.norm = LlamaRmsNorm(config.hidden, config.eps)
        self.rotary_emb = LlamaRotary(config.hidden // config.heads, config.rope_theta)
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Token ids `[B, S]` to logits, and the loss when there are labels."""
        x = self.embed_tokens(input_ids)
        cos, sin = self.rotary_emb(x, positions(input_ids.shape[1], input_ids))
        for layer in self.layers:
            x = layer(x, cos, sin)
        return outputs(self.lm_head(self.norm(x)), labels)
