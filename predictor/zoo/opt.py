"""OPT, Zhang et al. 2022 (pre-norm sizes)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictor.zoo.decoder import merge_heads, outputs, split_heads, tied_head


@dataclass(frozen=True, slots=True, kw_only=True)
class OptConfig:
    """Sizes of an OPT."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    positions: int = 2048
    vocab: int = 50272
    dropout: float = 0.1


class OptAttention(nn.Module):
    """Causal self-attention; the query is scaled before the product."""

    def __init__(self, config: OptConfig) -> None:
        super().__init__()
        self.head_dim = config.hidden // config.heads
        self.k_proj = nn.Linear(config.hidden, config.hidden)
        self.v_proj = nn.Linear(config.hidden, config.hidden)
        self.q_proj = nn.Linear(config.hidden, config.hidden)
        self.out_proj = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, S, E]` to the same."""
        q = split_heads(self.q_proj(x) * self.head_dim**-0.5, self.head_dim)
        k = split_heads(self.k_proj(x), self.head_dim)
        v = split_heads(self.v_proj(x), self.head_dim)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        return self.out_proj(merge_heads(out))  # type: ignore[no-any-return]


class OptLayer(nn.Module):
    """Pre-norm decoder layer; the MLP runs on `[B*S, E]`."""

    def __init__(self, config: OptConfig) -> None:
        super().__init__()
        self.p = config.dropout
        self.self_attn = OptAttention(config)
        self.self_attn_layer_norm = nn.LayerNorm(config.hidden)
        self.fc1 = nn.Linear(config.hidden, config.ffn)
        self.fc2 = nn.Linear(config.ffn, config.hidden)
        self.final_layer_norm = nn.LayerNorm(config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, S, E]` to the same."""
        attended = self.self_attn(self.self_attn_layer_norm(x))
        x = x + functional.dropout(attended, p=self.p, training=self.training)
        shape = x.shape
        flat = x.reshape(-1, x.size(-1))
        out = self.fc2(functional.relu(self.fc1(self.final_layer_norm(flat))))
        out = functional.dropout(out, p=self.p, training=self.training)
        return (flat + out).view(shape)


class Opt(nn.Module):
    """OPT with a tied language-model head."""

    OFFSET = 2

    def __init__(self, config: OptConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden, padding_idx=1)
        self.embed_positions = nn.Embedding(config.positions + self.OFFSET, config.hidden)
        self.layers = nn.ModuleList([OptLayer(config) for _ in range(config.layers)])
        self.final_layer_norm = nn.LayerNorm(config.hidden)
        self.lm_head = tied_head(self.embed_tokens)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Token ids `[B, S]` to logits, and the loss when there are labels."""
        mask = torch.ones(input_ids.shape, device=input_ids.device)
        position_ids = (torch.cumsum(mask, dim=1) * mask - 1).long()
        x = self.embed_tokens(input_ids) + self.embed_positions(position_ids + self.OFFSET)
        for layer in self.layers:
            x = layer(x)
        return outputs(self.lm_head(self.final_layer_norm(x)), labels)
