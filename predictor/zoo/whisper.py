"""Whisper (Radford et al. 2022): an encoder of mel frames and a decoder of text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictor.zoo.decoder import split_heads, tied_head
from predictor.zoo.entry import Inputs, ids
from predictor.zoo.t5 import sequence_outputs, shift_right

# B batch, F mel frames, S encoder positions, T target length, E hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperConfig:
    """Sizes of a Whisper."""

    layers: int = 6
    """Of the encoder, and of the decoder."""
    hidden: int = 512
    heads: int = 8
    ffn: int = 2048
    vocab: int = 51865
    mels: int = 80
    source: int = 1500
    """Encoder positions: 30 seconds."""
    target: int = 448
    """Decoder positions."""
    start: int = 50258
    """Token that opens the target."""


class WhisperAttention(nn.Module):
    """Multi-head attention; the key has no bias and the query is scaled before the product."""

    def __init__(self, config: WhisperConfig, *, causal: bool) -> None:
        super().__init__()
        self.head_dim = config.hidden // config.heads
        self.causal = causal
        self.k_proj = nn.Linear(config.hidden, config.hidden, bias=False)
        self.v_proj = nn.Linear(config.hidden, config.hidden)
        self.q_proj = nn.Linear(config.hidden, config.hidden)
        self.out_proj = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        """Queries of x on keys and values of source: `[B, T, E]`."""
        scaled = self.q_proj(x) * self.head_dim**-0.5
        q, k, v = (
            split_heads(t, self.head_dim).contiguous()
            for t in (scaled, self.k_proj(source), self.v_proj(source))
        )
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=1.0)
        merged = out.transpose(1, 2).contiguous().reshape(x.shape)
        return self.out_proj(merged)  # type: ignore[no-any-return]


class WhisperLayer(nn.Module):
    """Pre-norm layer of the encoder, or of the decoder with attention to the encoder."""

    def __init__(self, config: WhisperConfig, *, decoder: bool) -> None:
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(config.hidden)
        self.self_attn = WhisperAttention(config, causal=decoder)
        if decoder:
            self.encoder_attn_layer_norm = nn.LayerNorm(config.hidden)
            self.encoder_attn = WhisperAttention(config, causal=False)
        self.final_layer_norm = nn.LayerNorm(config.hidden)
        self.fc1 = nn.Linear(config.hidden, config.ffn)
        self.fc2 = nn.Linear(config.ffn, config.hidden)
        self.decoder = decoder

    def forward(self, x: Tensor, source: Tensor | None = None) -> Tensor:
        """`[B, T, E]` to the same; `source` is the encoder's result."""
        normed = self.self_attn_layer_norm(x)
        x = x + self.self_attn(normed, normed)
        if source is not None:
            x = x + self.encoder_attn(self.encoder_attn_layer_norm(x), source)
        x = x + self.fc2(functional.gelu(self.fc1(self.final_layer_norm(x))))
        if x.dtype is torch.float16 and not self.decoder:
            top = torch.finfo(x.dtype).max - 1000
            x = torch.clamp(x, min=-top, max=top)
        return x


class WhisperEncoder(nn.Module):
    """Two convolutions, the second halving the frames, fixed positions, and the layers."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(config.mels, config.hidden, 3, padding=1)
        self.conv2 = nn.Conv1d(config.hidden, config.hidden, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(config.source, config.hidden)
        self.embed_positions.requires_grad_(False)
        self.layers = nn.ModuleList(
            [WhisperLayer(config, decoder=False) for _ in range(config.layers)]
        )
        self.layer_norm = nn.LayerNorm(config.hidden)

    def forward(self, features: Tensor) -> Tensor:
        """Mel features `[B, 80, F]` to states `[B, F/2, E]`."""
        x = functional.gelu(self.conv1(features))
        x = functional.gelu(self.conv2(x)).permute(0, 2, 1)
        at = torch.arange(self.embed_positions.num_embeddings, device=x.device)
        x = x + self.embed_positions(at)
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x)  # type: ignore[no-any-return]


class WhisperDecoder(nn.Module):
    """Learned positions and the layers."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden, padding_idx=0)
        self.embed_positions = nn.Parameter(torch.empty(config.target, config.hidden))
        self.layers = nn.ModuleList(
            [WhisperLayer(config, decoder=True) for _ in range(config.layers)]
        )
        self.layer_norm = nn.LayerNorm(config.hidden)

    def forward(self, tokens: Tensor, source: Tensor) -> Tensor:
        """Target ids `[B, T]` to states `[B, T, E]`."""
        x = self.embed_tokens(tokens)
        at = torch.arange(x.shape[1], device=x.device).unsqueeze(0).repeat(x.shape[0], 1)
        x = x + self.embed_positions[at]
        for layer in self.layers:
            x = layer(x, source)
        return self.layer_norm(x)  # type: ignore[no-any-return]


class Whisper(nn.Module):
    """Whisper with its tied output layer."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.encoder = WhisperEncoder(config)
        self.decoder = WhisperDecoder(config)
        self.proj_out = tied_head(self.decoder.embed_tokens)
        self.start = config.start

    def forward(
        self,
        input_features: Tensor,
        decoder_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Mel features `[B, 80, F]` and target ids `[B, T]` to logits."""
        if decoder_input_ids is None:
            assert labels is not None
            decoder_input_ids = shift_right(labels, self.start)
        states = self.decoder(decoder_input_ids, self.encoder(input_features))
        return sequence_outputs(self.proj_out(states), labels)


def speech(batch: int, seq: int, train: bool) -> Inputs:
    """Mel features of 30 seconds, and target tokens: given in inference, labels in training."""
    config = WhisperConfig()
    target = "labels" if train else "decoder_input_ids"
    return {
        "input_features": torch.empty(batch, config.mels, 2 * config.source),
        target: ids(batch, seq),
    }
