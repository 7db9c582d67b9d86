"""Blocks of the denoising U-Net of Stable Diffusion 1.5."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictor.zoo.decoder import merge_heads, split_heads

# B batch, C channels, H and W of the latent, N text tokens, E text width

GROUPS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class UnetConfig:
    """Sizes of a U-Net."""

    latent: int = 4
    """Channels of the latent image."""
    size: int = 64
    """Height and width of the latent image: an eighth of the picture's."""
    widths: tuple[int, ...] = (320, 640, 1280, 1280)
    heads: int = 8
    text: int = 768
    text_tokens: int = 77


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with group norms; the time embedding comes in between."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, inputs, eps=1e-5)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.norm2 = nn.GroupNorm(GROUPS, outputs, eps=1e-5)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = None if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """`[B, in, H, W]` to `[B, out, H, W]`."""
        out = self.conv1(functional.silu(self.norm1(x)))
        out = out + self.time(functional.silu(time))[:, :, None, None]
        out = self.conv2(functional.silu(self.norm2(out)))
        kept = x if self.shortcut is None else self.shortcut(x)
        return (kept + out) / 1.0  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Attention of pixels to pixels or to the text."""

    def __init__(self, width: int, source: int, heads: int) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(source, width, bias=False)
        self.to_v = nn.Linear(source, width, bias=False)
        self.to_out = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        """Queries of x on keys and values of source."""
        q, k, v = (
            split_heads(t, self.head_dim)
            for t in (self.to_q(x), self.to_k(source), self.to_v(source))
        )
        out = functional.scaled_dot_product_attention(q, k, v)
        return self.to_out(merge_heads(out)) / 1.0  # type: ignore[no-any-return]


class TransformerBlock(nn.Module):
    """Pixels attend to each other and to the text, then pass a gated MLP."""

    def __init__(self, width: int, config: UnetConfig) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, width, eps=1e-6)
        self.proj_in = nn.Conv2d(width, width, 1)
        self.norm1 = nn.LayerNorm(width)
        self.attn1 = Attention(width, width, config.heads)
        self.norm2 = nn.LayerNorm(width)
        self.attn2 = Attention(width, config.text, config.heads)
        self.norm3 = nn.LayerNorm(width)
        self.gated = nn.Linear(width, 8 * width)
        self.out = nn.Linear(4 * width, width)
        self.proj_out = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """`[B, C, H, W]` to the same."""
        batch, width, height, across = x.shape
        y = self.proj_in(self.norm(x))
        y = y.permute(0, 2, 3, 1).reshape(batch, height * across, width)
        normed = self.norm1(y)
        y = self.attn1(normed, normed) + y
        y = self.attn2(self.norm2(y), text) + y
        value, gate = self.gated(self.norm3(y)).chunk(2, dim=-1)
        y = self.out(value * functional.gelu(gate)) + y
        y = y.reshape(batch, height, across, width).permute(0, 3, 1, 2).contiguous()
        return self.proj_out(y) + x  # type: ignore[no-any-return]


class Level(nn.Module):
    """Residual blocks of one resolution, each with a transformer block where there is attention."""

    def __init__(
        self, widths: list[tuple[int, int]], time: int, config: UnetConfig, *, attends: bool
    ) -> None:
        super().__init__()
        self.residual = nn.ModuleList([ResidualBlock(a, b, time) for a, b in widths])
        self.attention = nn.ModuleList(
            [TransformerBlock(b, config) for _, b in widths] if attends else []
        )

    def step(self, index: int, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        """Block number `index`."""
        x = self.residual[index](x, time)
        return self.attention[index](x, text) if len(self.attention) else x


class Down(Level):
    """Two blocks on the way down, halved at the end but for the last level."""

    def __init__(self, widths: list[tuple[int, int]], time: int, config: UnetConfig, *,
                 attends: bool, downsamples: bool) -> None:  # fmt: skip
        super().__init__(widths, time, config, attends=attends)
        width = widths[-1][1]
        self.downsample = nn.Conv2d(width, width, 3, stride=2, padding=1) if downsamples else None

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> tuple[Tensor, ...]:
        """All results that the way up takes, the last one last."""
        found = []
        for index in range(len(self.residual)):
            x = self.step(index, x, time, text)
            found.append(x)
        if self.downsample is not None:
            found.append(self.downsample(x))
        return tuple(found)


class Up(Level):
    """Three blocks on the way up, each with a result of the way down; doubled at the end."""

    def __init__(self, widths: list[tuple[int, int]], time: int, config: UnetConfig, *,
                 attends: bool, upsamples: bool) -> None:  # fmt: skip
        super().__init__(widths, time, config, attends=attends)
        width = widths[-1][1]
        self.upsample = nn.Conv2d(width, width, 3, padding=1) if upsamples else None

    def forward(self, x: Tensor, time: Tensor, text: Tensor, *kept: Tensor) -> Tensor:
        """`kept` are the results of the way down, in the order they are taken."""
        for index, other in enumerate(kept):
            x = self.step(index, torch.cat([x, other], dim=1), time, text)
        if self.upsample is None:
            return x
        return self.upsample(  # type: ignore[no-any-return]
            functional.interpolate(x, scale_factor=2.0, mode="nearest")
        )
