"""GPT decoders of HW-GPT-Bench: heads and MLP width of their own in every layer.

Sizes are those of Sukthanker et al. 2024 (arXiv 2405.10299). The module launches what was measured
there: the rotary tables are made anew in every block, and only a quarter of each head is rotated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictor.zoo.decoder import split_heads

# B batch, S sequence, E hidden, H heads, R rotated channels of a head

HEAD_DIM = 64
ROTATED = 16
VOCAB = 50_254
ROPE_BASE = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HwGptConfig:
    """One architecture."""

    hidden: int
    heads: tuple[int, ...]
    """Heads of each layer."""
    mlp_ratio: tuple[int, ...]
    """Inner size of each layer's MLP over the hidden size."""
    bias: bool
    """Whether the projections of the blocks have one (norms always do, the output head never)."""
    vocab: int = VOCAB

    @classmethod
    def of(cls, hidden: int, heads: str, mlp_ratio: str, bias: int) -> HwGptConfig:
        """From the columns of the published tables: numbers a layer, separated by spaces.

        Raises:
            ValueError: a number that is none, or lists of different lengths.
        """
        found = cls(
            hidden=int(hidden), heads=_numbers(heads), mlp_ratio=_numbers(mlp_ratio),
            bias=bool(bias),
        )  # fmt: skip
        if len(found.heads) != len(found.mlp_ratio):
            raise ValueError(f"{len(found.heads)} layers by heads, {len(found.mlp_ratio)} by MLP")
        return found

    @property
    def parameters(self) -> int:
        """Number of parameters, as the tables count them."""
        inner, layers = HEAD_DIM * sum(self.heads), len(self.heads)
        weights = 4 * self.hidden * inner + 3 * self.hidden**2 * sum(self.mlp_ratio)
        norms = (4 * layers + 2) * self.hidden
        biases = 3 * inner + 2 * layers * self.hidden + 2 * self.hidden * sum(self.mlp_ratio)
        return weights + norms + 2 * self.vocab * self.hidden + (biases if self.bias else 0)

    def macs(self, tokens: int) -> int:
        """Multiply-adds of the projections and the output head, attention scores left out."""
        inner = HEAD_DIM * sum(self.heads)
        a_token = 4 * inner + 3 * self.hidden * sum(self.mlp_ratio) + self.vocab
        return tokens * self.hidden * a_token


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split())


def rope_tables(x_BSE: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine `[S, R]` of each position, in fp32."""
    seq, device = x_BSE.shape[1], x_BSE.device
    exponents = torch.arange(0, ROTATED, 2, device=device).float() / ROTATED
    theta = 1.0 / (ROPE_BASE**exponents)
    angles = torch.outer(torch.arange(seq, device=device) / 1, theta).repeat(1, 2)
    return torch.cos(angles), torch.sin(angles)


def rotated(x_BHSD: Tensor, cos_SR: Tensor, sin_SR: Tensor) -> Tensor:
    """A head's first quarter rotated by position, the rest as it is."""
    turned, rest = x_BHSD[..., :ROTATED], x_BHSD[..., ROTATED:]
    low, high = turned[..., : ROTATED // 2], turned[..., ROTATED // 2 :]
    swapped = torch.cat((-high, low), dim=-1)
    roped = (turned * cos_SR + swapped * sin_SR).type_as(turned)
    return torch.cat((roped, rest), dim=-1)


class HwGptAttention(nn.Module):
    """Causal attention, queries, keys and values of a head side by side."""

    def __init__(self, config: HwGptConfig, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attn = nn.Linear(config.hidden, 3 * heads * HEAD_DIM, bias=config.bias)
        self.proj = nn.Linear(heads * HEAD_DIM, config.hidden, bias=config.bias)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`[B, S, E]` to the same."""
        batch, seq, _ = x.shape
        qkv = split_heads(self.attn(x), 3 * HEAD_DIM)
        q, k, v = qkv.split(HEAD_DIM, dim=-1)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.proj(y.transpose(1, 2).reshape(batch, seq, -1))
        return out


class HwGptMlp(nn.Module):
    """Gated MLP of three matrices."""

    def __init__(self, config: HwGptConfig, ratio: int) -> None:
        super().__init__()
        inner = ratio * config.hidden
        self.fc_1 = nn.Linear(config.hidden, inner, bias=config.bias)
        self.fc_2 = nn.Linear(config.hidden, inner, bias=config.bias)
        self.proj = nn.Linear(inner, config.hidden, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, S, E]` to the same."""
        gate, up = self.fc_1(x), self.fc_2(x)
        out: Tensor = self.proj(functional.silu(gate) * up)
        return out


class HwGptBlock(nn.Module):
    """Attention and MLP side by side, each behind its norm."""

    def __init__(self, config: HwGptConfig, heads: int, ratio: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.hidden)
        self.attn = HwGptAttention(config, heads)
        self.norm_2 = nn.LayerNorm(config.hidden)
        self.mlp = HwGptMlp(config, ratio)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, S, E]` to the same."""
        normed = self.norm_1(x)
        cos, sin = rope_tables(x)
        attended = self.attn(normed, cos, sin)
        out: Tensor = self.mlp(self.norm_2(x)) + attended + x
        return out


class HwGpt(nn.Module):
    """The decoder with an output head of its own."""

    def __init__(self, config: HwGptConfig) -> None:
        super().__init__()
        layers: Sequence[tuple[int, int]] = tuple(zip(config.heads, config.mlp_ratio, strict=True))
        self.wte = nn.Embedding(config.vocab, config.hidden)
        self.h = nn.ModuleList([HwGptBlock(config, *layer) for layer in layers])
        self.ln_f = nn.LayerNorm(config.hidden)
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Token ids `[B, S]` to logits `[B, S, vocab]`."""
        x = self.wte(input_ids)
        for block in self.h:
            x = block(x)
        logits: Tensor = self.lm_head(self.ln_f(x))
        return logits
