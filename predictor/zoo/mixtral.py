"""Mixtral (Jiang et al. 2024): Llama's layers with two of eight experts a token.

The experts run as grouped products on tokens sorted by expert, so shapes do not depend on how the
router decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictor.zoo.llama import Llama, LlamaAttention, LlamaConfig, LlamaRmsNorm

# T tokens, E hidden, X experts, K experts a token, F width of an expert


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtralConfig:
    """Sizes of a Mixtral."""

    layers: int = 32
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    ffn: int = 14336
    vocab: int = 32000
    experts: int = 8
    active: int = 2
    """Experts that a token visits."""
    rope_theta: float = 1000000.0
    eps: float = 1e-5

    @property
    def attention(self) -> LlamaConfig:
        """The sizes that the attention shares with Llama."""
        return LlamaConfig(
            layers=self.layers, hidden=self.hidden, heads=self.heads, kv_heads=self.kv_heads,
            ffn=self.ffn, vocab=self.vocab, rope_theta=self.rope_theta, eps=self.eps,
        )  # fmt: skip


class MixtralRouter(nn.Module):
    """Which experts a token visits, and with what weight."""

    def __init__(self, config: MixtralConfig) -> None:
        super().__init__()
        self.active = config.active
        self.weight = nn.Parameter(torch.empty(config.experts, config.hidden))

    def forward(self, x_TE: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and experts, both `[T, K]`."""
        logits = functional.linear(x_TE, self.weight)
        weights, chosen = torch.topk(
            functional.softmax(logits.float(), dim=-1), self.active, dim=-1
        )
        weights /= weights.sum(dim=-1, keepdim=True)
        return weights, chosen


class MixtralExperts(nn.Module):
    """SwiGLU experts, their weights stacked."""

    def __init__(self, config: MixtralConfig) -> None:
        super().__init__()
        self.experts = config.experts
        self.gate_up_proj = nn.Parameter(torch.empty(config.experts, 2 * config.ffn, config.hidden))
        self.down_proj = nn.Parameter(torch.empty(config.experts, config.hidden, config.ffn))

    def forward(self, x_TE: Tensor, chosen_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """`[T, E]` to the same: every token's chosen experts, weighed and summed."""
        active = chosen_TK.shape[-1]
        order, taken = torch.sort(chosen_TK.reshape(-1))
        rows = x_TE[taken // active]
        weights = weights_TK.reshape(-1)[taken]
        counts = torch.histc(order.int(), bins=self.experts, min=0, max=self.experts - 1)
        ends = torch.cumsum(counts, dim=0, dtype=torch.int32)
        gate, up = _grouped(rows, self.gate_up_proj, ends).chunk(2, dim=-1)
        out = _grouped(functional.silu(gate) * up, self.down_proj, ends) * weights.unsqueeze(-1)
        back = torch.empty_like(taken)
        back[taken] = torch.arange(taken.size(0), device=taken.device)
        summed = out[back].view(x_TE.shape[0], active, x_TE.shape[1]).sum(dim=1)
        return summed.to(x_TE.dtype)


def _grouped(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Each group of rows by its own `[out, in]` weight."""
    return torch._grouped_mm(rows.to(weight.dtype), weight.transpose(-2, -1), offs=ends)


class MixtralLayer(nn.Module):
    """Pre-norm decoder layer with experts for its MLP."""

    def __init__(self, config: MixtralConfig) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config.attention)
        self.router = MixtralRouter(config)
        self.experts = MixtralExperts(config)
        self.input_layernorm = LlamaRmsNorm(config.hidden, config.eps)
        self.post_attention_layernorm = LlamaRmsNorm(config.hidden, config.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`[B, S, E]` to the same."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        rows = self.post_attention_layernorm(x).view(-1, x.shape[-1])
        weights, chosen = self.router(rows)
        return x + self.experts(rows, chosen, weights).reshape(x.shape)  # type: ignore[no-any-return]


class Mixtral(Llama):
    """Llama's stack of Mixtral's layers."""

    def __init__(self, config: MixtralConfig) -> None:
        super().__init__(config.attention, layer=partial(MixtralLayer, config))
