"""The denoising U-Net of Stable Diffusion 1.5 (Rombach et al. 2022), 860M parameters."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictor.zoo.entry import Inputs
from predictor.zoo.unet_blocks import (
    GROUPS,
    Down,
    ResidualBlock,
    TransformerBlock,
    UnetConfig,
    Up,
)

LONGEST_PERIOD = 10_000.0


def time_features(times: Tensor, width: int) -> Tensor:
    """Cosines and sines of the diffusion time at `width / 2` frequencies: `[B, width]`."""
    half = width // 2
    at = torch.arange(half, dtype=torch.float32, device=times.device)
    frequencies = torch.exp(-math.log(LONGEST_PERIOD) * at / half)
    angles = times[:, None].float() * frequencies[None, :]
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)


class Unet(nn.Module):
    """Latents, a time and encoded text to the noise in the latents."""

    def __init__(self, config: UnetConfig) -> None:
        super().__init__()
        widths = config.widths
        time = 4 * widths[0]
        self.width = widths[0]
        self.time1 = nn.Linear(widths[0], time)
        self.time2 = nn.Linear(time, time)
        self.conv_in = nn.Conv2d(config.latent, widths[0], 3, padding=1)
        last = len(widths) - 1
        self.down = nn.ModuleList()
        kept = [widths[0]]
        for level, width in enumerate(widths):
            pairs = [(kept[-1], width), (width, width)]
            self.down.append(
                Down(pairs, time, config, attends=level < last, downsamples=level < last)
            )
            kept += [width, width] if level == last else [width, width, width]
        self.middle_in = ResidualBlock(widths[-1], widths[-1], time)
        self.middle = TransformerBlock(widths[-1], config)
        self.middle_out = ResidualBlock(widths[-1], widths[-1], time)
        self.up = nn.ModuleList()
        before = widths[-1]
        for level, width in reversed(list(enumerate(widths))):
            pairs = []
            for _ in range(3):
                pairs.append((before + kept.pop(), width))
                before = width
            self.up.append(Up(pairs, time, config, attends=level < last, upsamples=level > 0))
        self.norm_out = nn.GroupNorm(GROUPS, widths[0], eps=1e-5)
        self.conv_out = nn.Conv2d(widths[0], config.latent, 3, padding=1)

    def forward(
        self, latents: Tensor, times: Tensor, text: Tensor, noise: Tensor | None = None
    ) -> dict[str, Tensor]:
        """`[B, 4, H, W]` to the same; the loss is the squared error of the noise."""
        time = time_features(times, self.width).to(latents.dtype)
        time = self.time2(functional.silu(self.time1(time)))
        x = self.conv_in(latents)
        kept = [x]
        for level in self.down:
            found = level(x, time, text)
            kept.extend(found)
            x = found[-1]
        x = self.middle_in(x, time)
        x = self.middle_out(self.middle(x, text), time)
        for level in self.up:
            x = level(x, time, text, kept.pop(), kept.pop(), kept.pop())
        x = self.conv_out(functional.silu(self.norm_out(x)))
        if noise is None:
            return {"sample": x}
        return {"loss": functional.mse_loss(x.float(), noise.float()), "sample": x}


def noisy_latents(batch: int, seq: int, train: bool) -> Inputs:
    """Latents of 64 x 64, times, encoded text, and the noise in training."""
    config = UnetConfig()
    shape = (batch, config.latent, config.size, config.size)
    inputs = {
        "latents": torch.empty(shape),
        "times": torch.empty(batch, dtype=torch.long),
        "text": torch.empty(batch, config.text_tokens, config.text),
    }
    return {**inputs, "noise": torch.empty(shape)} if train else inputs
