"""ResNets (He et al. 2015, v1.5 strides) and ViT-B/16 (Dosovitskiy et al. 2020)."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictor.zoo.entry import IMAGE

CLASSES = 1000


def classified(logits: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
    """The model's output: logits, and the cross-entropy when there are labels."""
    if labels is None:
        return {"logits": logits}
    return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    """The projection of a block whose input and output differ, None where they do not."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut; the stride sits on the first."""

    EXPANSION = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, C, H, W]` to `[B, width, H/stride, W/stride]`."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions with a shortcut; the stride sits on the 3x3."""

    EXPANSION = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.EXPANSION
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, C, H, W]` to `[B, 4*width, H/stride, W/stride]`."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """ResNet of bottlenecks or basic blocks."""

    def __init__(
        self,
        blocks: tuple[int, int, int, int] = (3, 4, 6, 3),
        kind: type[Bottleneck] | type[BasicBlock] = Bottleneck,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs, stages = 64, []
        for stage, count in enumerate(blocks):
            width = 64 << stage
            layers: list[nn.Module] = []
            for index in range(count):
                layers.append(kind(inputs, width, 2 if stage and index == 0 else 1))
                inputs = width * kind.EXPANSION
            stages.append(nn.Sequential(*layers))
        self.layers = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inputs, CLASSES)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Images `[B, 3, H, W]` to logits, and the loss when there are labels."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.avgpool(self.layers(x))
        return classified(self.fc(torch.flatten(x, 1)), labels)


class VitBlock(nn.Module):
    """Pre-norm encoder block on `nn.MultiheadAttention`."""

    def __init__(self, hidden: int, heads: int, mlp: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(hidden, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(hidden, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(hidden, mlp), nn.GELU(), nn.Linear(mlp, hidden))

    def forward(self, tokens: Tensor) -> Tensor:
        """`[B, S, E]` to the same."""
        x = self.ln_1(tokens)
        x, _ = self.self_attention(x, x, x, need_weights=False)
        x = x + tokens
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class Vit(nn.Module):
    """Vision transformer with a class token."""

    def __init__(
        self,
        *,
        patch: int = 16,
        layers: int = 12,
        hidden: int = 768,
        heads: int = 12,
        mlp: int = 3072,
        image: int = IMAGE,
    ) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, hidden, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden))
        tokens = (image // patch) ** 2 + 1
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, hidden))
        blocks = [(f"layer_{i}", VitBlock(hidden, heads, mlp)) for i in range(layers)]
        self.layers = nn.Sequential(OrderedDict(blocks))
        self.ln = nn.LayerNorm(hidden, eps=1e-6)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Images `[B, 3, H, W]` to logits, and the loss when there are labels."""
        batch = images.shape[0]
        x = self.conv_proj(images).reshape(batch, self.class_token.shape[-1], -1).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(batch, -1, -1), x], dim=1)
        x = self.ln(self.layers(x + self.pos_embedding))
        return classified(self.head(x[:, 0]), labels)
