"""GPT-2 and GPT-3 shapes, as in Radford et al. 2019 and Brown et al. 2020."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictor.zoo.decoder import merge_heads, outputs, positions, split_heads, tied_head


@dataclass(frozen=True, slots=True, kw_only=True)
class GptConfig:
    """Sizes of a GPT."""

    layers: int
    hidden: int
    heads: int
    positions: int
    vocab: int = 50257
    dropout: float = 0.1


class ProjectionIO(nn.Module):
    """A linear layer with its weight stored `[in, out]` and computed by one `addmm`."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., in]` to `[..., out]`."""
        out = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return out.view(*x.shape[:-1], -1)


def gelu_new(x: Tensor) -> Tensor:
    """The tanh approximation written out, as the published model computes it."""
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


class GptAttention(nn.Module):
    """Causal self-attention with one fused input projection."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.hidden = config.hidden
        self.head_dim = config.hidden // config.heads
        self.dropout = config.dropout
        self.c_attn = ProjectionIO(config.hidden, 3 * config.hidden)
        self.c_proj = ProjectionIO(config.hidden, config.hidden)
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, S, E]` to the same."""
        q, k, v = (split_heads(t, self.head_dim) for t in self.c_attn(x).split(self.hidden, dim=2))
        out = functional.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        projected: Tensor = self.c_proj(merge_heads(out))
        return self.resid_dropout(projected)  # type: ignore[no-any-return]


class GptMlp(nn.Module):
    """Two projections around the written-out GELU."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.c_fc = ProjectionIO(config.hidden, 4 * config.hidden)
        self.c_proj = ProjectionIO(4 * config.hidden, config.hidden)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, S, E]` to the same."""
        return self.dropout(self.c_proj(gelu_new(self.c_fc(x))))  # type: ignore[no-any-return]


class GptBlock(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden)
        self.attn = GptAttention(config)
        self.ln_2 = nn.LayerNorm(config.hidden)
        self.mlp = GptMlp(config)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, S, E]` to the same."""
        x = self.attn(self.ln_1(x)) + x
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """GPT with a tied language-model head."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab, config.hidden)
        self.wpe = nn.Embedding(config.positions, config.hidden)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList([GptBlock(config) for _ in range(config.layers)])
        self.ln_f = nn.LayerNorm(config.hidden)
        self.lm_head = tied_head(self.wte)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Token ids `[B, S]` to logits, and the loss when there are labels."""
        x = self.wte(input_ids) + self.wpe(positions(input_ids.shape[1], input_ids))
        x = self.drop(x)
        for block in self.h:
            x = block(x)
        return outputs(self.lm_head(self.ln_f(x)), labels)
