"""T5 (Raffel et al. 2020): encoder and decoder with relative position biases."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictor.zoo.decoder import IGNORED, merge_heads, split_heads
from predictor.zoo.window import half_dtype

# B batch, H heads, S and T lengths of source and target, E hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class T5Config:
    """Sizes of a T5."""

    layers: int = 12
    """Of the encoder, and of the decoder."""
    hidden: int = 768
    heads: int = 12
    head_dim: int = 64
    ffn: int = 3072
    vocab: int = 32128
    buckets: int = 32
    distance: int = 128
    """Distances from here on share the last bucket."""
    dropout: float = 0.1
    eps: float = 1e-6


class T5Norm(nn.Module):
    """RMS norm whose statistics are in fp32, as the published implementation computes it."""

    def __init__(self, hidden: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """`[..., E]` to the same."""
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            x = x.to(self.weight.dtype)
        return self.weight * x


class T5PositionBias(nn.Module):
    """One learned bias a head and distance, distances in buckets that widen."""

    def __init__(self, config: T5Config, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.buckets, self.distance = config.buckets, config.distance
        self.embedding = nn.Embedding(config.buckets, config.heads)

    def _bucket(self, ahead: Tensor) -> Tensor:
        """Bucket of a key's position less the query's."""
        buckets = self.buckets
        start: Tensor | int = 0
        if self.causal:
            ahead = -torch.min(ahead, torch.zeros_like(ahead))
        else:
            buckets //= 2
            start = start + (ahead > 0).to(torch.long) * buckets
            ahead = torch.abs(ahead)
        exact = buckets // 2
        near = ahead < exact
        share = torch.log(ahead.float() / exact) / math.log(self.distance / exact)
        far = exact + (share * (buckets - exact)).to(torch.long)
        far = torch.min(far, torch.full_like(far, buckets - 1))
        return start + torch.where(near, ahead, far)

    def forward(self, length: int) -> Tensor:
        """Biases `[1, H, length, length]`, a view that is not contiguous."""
        device = self.embedding.weight.device
        query = torch.arange(length, dtype=torch.long, device=device)[:, None]
        key = torch.arange(length, dtype=torch.long, device=device)[None, :]
        values: Tensor = self.embedding(self._bucket(key - query))
        return values.permute(2, 0, 1).unsqueeze(0)


class T5Attention(nn.Module):
    """Attention without scale; the bias goes in as an additive mask."""

    def __init__(self, config: T5Config, *, causal: bool) -> None:
        super().__init__()
        inner = config.heads * config.head_dim
        self.head_dim, self.p, self.causal = config.head_dim, config.dropout, causal
        self.q = nn.Linear(config.hidden, inner, bias=False)
        self.k = nn.Linear(config.hidden, inner, bias=False)
        self.v = nn.Linear(config.hidden, inner, bias=False)
        self.o = nn.Linear(inner, config.hidden, bias=False)

    def forward(self, x: Tensor, source: Tensor, bias: Tensor) -> Tensor:
        """Queries of x on keys and values of source: `[B, T, E]`."""
        q = split_heads(self.q(x), self.head_dim)
        k = split_heads(self.k(source), self.head_dim)
        v = split_heads(self.v(source), self.head_dim)
        mask = bias
        if self.causal:
            at = torch.arange(q.shape[2], device=q.device)
            seen = (at[:, None] >= at[None, :]).view(1, 1, q.shape[2], q.shape[2])
            mask = torch.where(seen, bias, torch.finfo(k.dtype).min)
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask.contiguous(), dropout_p=self.p if self.training else 0.0,
            scale=1.0,
        )  # fmt: skip
        return self.o(merge_heads(out))  # type: ignore[no-any-return]


class T5Block(nn.Module):
    """Pre-norm block: self-attention, in the decoder attention to the encoder, and the MLP."""

    def __init__(self, config: T5Config, *, decoder: bool) -> None:
        super().__init__()
        self.norm = T5Norm(config.hidden, config.eps)
        self.attention = T5Attention(config, causal=decoder)
        if decoder:
            self.cross_norm = T5Norm(config.hidden, config.eps)
            self.cross_attention = T5Attention(config, causal=False)
        self.mlp_norm = T5Norm(config.hidden, config.eps)
        self.wi = nn.Linear(config.hidden, config.ffn, bias=False)
        self.wo = nn.Linear(config.ffn, config.hidden, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        bias: Tensor,
        source: Tensor | None = None,
        cross_bias: Tensor | None = None,
    ) -> Tensor:
        """`[B, T, E]` to the same; `source` is the encoder's result."""
        normed = self.norm(x)
        x = self._finite(x + self.dropout(self.attention(normed, normed, bias)))
        if source is not None and cross_bias is not None:
            attended = self.cross_attention(self.cross_norm(x), source, cross_bias)
            x = self._finite(x + self.dropout(attended))
        inner = self.dropout(functional.relu(self.wi(self.mlp_norm(x)))).to(self.wo.weight.dtype)
        return self._finite(x + self.dropout(self.wo(inner)))

    @staticmethod
    def _finite(x: Tensor) -> Tensor:
        """In fp16 the published implementation clamps what would overflow."""
        if x.dtype is not torch.float16:
            return x
        top = torch.finfo(x.dtype).max
        most = torch.where(torch.isinf(x).any(), top - 1000, top)
        return torch.clamp(x, min=-most, max=most)


class T5Stack(nn.Module):
    """Encoder or decoder; the position biases are shared by its layers."""

    def __init__(self, config: T5Config, *, decoder: bool) -> None:
        super().__init__()
        self.bias = T5PositionBias(config, causal=decoder)
        self.layers = nn.ModuleList(
            [T5Block(config, decoder=decoder) for _ in range(config.layers)]
        )
        self.final_norm = T5Norm(config.hidden, config.eps)
        self.dropout = nn.Dropout(config.dropout)
        self.heads = config.heads

    def forward(self, x: Tensor, source: Tensor | None = None) -> Tensor:
        """Embedded tokens `[B, T, E]` to states of the same shape."""
        x = self.dropout(x)
        bias = self.bias(x.shape[1])
        cross = None
        if source is not None:
            shape = (1, self.heads, x.shape[1], source.shape[1])
            cross = torch.zeros(shape, device=x.device, dtype=half_dtype(x) or x.dtype)
        for layer in self.layers:
            x = layer(x, bias, source, cross)
        return self.dropout(self.final_norm(x))  # type: ignore[no-any-return]


class T5(nn.Module):
    """T5 with one embedding for both sides and an output layer tied to it (version 1.0)."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.shared = nn.Embedding(config.vocab, config.hidden)
        self.encoder = T5Stack(config, decoder=False)
        self.decoder = T5Stack(config, decoder=True)
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)
        self.lm_head.weight = self.shared.weight
        self.scale = config.hidden**-0.5

    def forward(
        self,
        input_ids: Tensor,
        decoder_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Source ids `[B, S]` and target ids `[B, T]` to logits; labels are shifted to targets."""
        source = self.encoder(self.shared(input_ids))
        if decoder_input_ids is None:
            assert labels is not None
            decoder_input_ids = shift_right(labels, 0)
        x = self.decoder(self.shared(decoder_input_ids), source) * self.scale
        return sequence_outputs(self.lm_head(x), labels)


def shift_right(labels: Tensor, start: int) -> Tensor:
    """Decoder inputs: the labels one later, the start token first, padding where ignored."""
    shifted = labels.new_zeros(labels.shape)
    shifted[..., 1:] = labels[..., :-1].clone()
    shifted[..., 0] = start
    return shifted.masked_fill_(shifted == IGNORED, 0)


def sequence_outputs(logits: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
    """Logits, and the mean cross-entropy of labels that stand at their own positions."""
    if labels is None:
        return {"logits": logits}
    rows = logits.view(-1, logits.size(-1))
    return {"loss": functional.cross_entropy(rows, labels.reshape(-1)), "logits": logits}
