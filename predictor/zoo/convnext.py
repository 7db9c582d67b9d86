"""ConvNeXt-B (Liu et al. 2022), without stochastic depth."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from predictor.zoo.vision import CLASSES, classified


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of `[B, C, H, W]`."""

    def forward(self, x: Tensor) -> Tensor:
        """`[B, C, H, W]` to the same."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    """A 7x7 convolution a channel, then an MLP on the channels, scaled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.fc1 = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """`[B, C, H, W]` to the same."""
        out = self.norm(self.conv(x).permute(0, 2, 3, 1))
        out = self.fc2(self.act(self.fc1(out))).permute(0, 3, 1, 2)
        return x + out.mul(self.gamma.reshape(1, -1, 1, 1))  # type: ignore[no-any-return]


class ConvNext(nn.Module):
    """Four stages of blocks, halved and widened between."""

    def __init__(
        self,
        depths: tuple[int, ...] = (3, 3, 27, 3),
        widths: tuple[int, ...] = (128, 256, 512, 1024),
    ) -> None:
        super().__init__()
        stages: list[nn.Module] = [
            nn.Sequential(nn.Conv2d(3, widths[0], 4, stride=4), ChannelNorm(widths[0], eps=1e-6))
        ]
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            if stage:
                before = widths[stage - 1]
                halved = nn.Conv2d(before, width, 2, stride=2)
                stages.append(nn.Sequential(ChannelNorm(before, eps=1e-6), halved))
            stages.append(nn.Sequential(*[ConvNextBlock(width) for _ in range(depth)]))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.norm = ChannelNorm(widths[-1], eps=1e-6)
        self.head = nn.Linear(widths[-1], CLASSES)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Images `[B, 3, H, W]` to logits, and the loss when there are labels."""
        x = self.norm(self.pool(self.stages(images)))
        return classified(self.head(torch.flatten(x, 1)), labels)
