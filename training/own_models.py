"""Small models of families that the bundled zoo does not have, for the project's own data set."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 1000


def classified(logits: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
    """Logits, and the loss when there are labels."""
    if labels is None:
        return {"logits": logits}
    return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class Mlp(nn.Module):
    """Linear layers with a rectifier between."""

    def __init__(self, inputs: int, hidden: int, layers: int) -> None:
        super().__init__()
        widths = [inputs, *[hidden] * layers]
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in itertools.pairwise(widths)])
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """`[B, I]` to logits."""
        for layer in self.layers:
            x = torch.relu(layer(x))
        return classified(self.head(x), labels)


class MixerBlock(nn.Module):
    """An MLP across patches, then one across channels."""

    def __init__(self, patches: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.patches1, self.patches2 = (
            nn.Linear(patches, 2 * patches),
            nn.Linear(2 * patches, patches),
        )
        self.channels1, self.channels2 = (
            nn.Linear(hidden, 4 * hidden),
            nn.Linear(4 * hidden, hidden),
        )

    def forward(self, x: Tensor) -> Tensor:
        """`[B, P, C]` to the same."""
        y = self.norm1(x).transpose(1, 2)
        x = x + self.patches2(functional.gelu(self.patches1(y))).transpose(1, 2)
        return x + self.channels2(functional.gelu(self.channels1(self.norm2(x))))


class Mixer(nn.Module):
    """MLP-Mixer."""

    def __init__(self, image: int, patch: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, hidden, patch, stride=patch)
        patches = (image // patch) ** 2
        self.blocks = nn.Sequential(*[MixerBlock(patches, hidden) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, CLASSES)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Images to logits."""
        x = self.stem(images).flatten(2).transpose(1, 2)
        return classified(self.head(self.norm(self.blocks(x)).mean(1)), labels)


class Vgg(nn.Module):
    """Plain 3x3 convolutions with batch norm, halved by max-pooling."""

    def __init__(self, widths: tuple[int, ...], each: int = 2) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for width in widths:
            for _ in range(each):
                layers += [nn.Conv2d(before, width, 3, padding=1, bias=False),
                           nn.BatchNorm2d(width), nn.ReLU()]  # fmt: skip
                before = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.hidden, self.head = nn.Linear(before, 512), nn.Linear(512, CLASSES)
        self.drop = nn.Dropout(0.5)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Images to logits."""
        x = self.features(images).mean((2, 3))
        return classified(self.head(self.drop(torch.relu(self.hidden(x)))), labels)


class Separable(nn.Module):
    """Inverted residual: widen, filter each channel, narrow."""

    def __init__(self, inputs: int, outputs: int, stride: int, widen: int) -> None:
        super().__init__()
        hidden = inputs * widen
        self.parts = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.Hardswish(),
            nn.Conv2d(hidden, hidden, 3, stride=stride, padding=1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden), nn.Hardswish(),
            nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """`[B, C, H, W]` to the narrower one."""
        return x + self.parts(x) if self.adds else self.parts(x)


class MobileNet(nn.Module):
    """A stack of inverted residuals."""

    def __init__(self, widths: tuple[int, ...], each: int, widen: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, stride=2, padding=1, bias=False)
        blocks: list[nn.Module] = []
        before = widths[0]
        for width in widths:
            for i in range(each):
                blocks.append(Separable(before, width, 2 if i == 0 else 1, widen))
                before = width
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(before, CLASSES)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Images to logits."""
        return classified(self.head(self.blocks(self.stem(images)).mean((2, 3))), labels)


class DenseNet(nn.Module):
    """Every layer reads all before it in its block."""

    def __init__(self, growth: int, layers: int, blocks: int) -> None:
        super().__init__()
        width = 2 * growth
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
        self.blocks = nn.ModuleList()
        self.narrow = nn.ModuleList()
        for _ in range(blocks):
            block = nn.ModuleList()
            for _ in range(layers):
                block.append(
                    nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(),
                                  nn.Conv2d(width, growth, 3, padding=1, bias=False))
                )  # fmt: skip
                width += growth
            self.blocks.append(block)
            self.narrow.append(nn.Sequential(nn.Conv2d(width, width // 2, 1), nn.AvgPool2d(2)))
            width //= 2
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Images to logits."""
        x = self.stem(images)
        for block, narrow in zip(self.blocks, self.narrow, strict=True):
            for layer in block:
                x = torch.cat([x, layer(x)], dim=1)
            x = narrow(x)
        return classified(self.head(x.mean((2, 3))), labels)


class Autoencoder(nn.Module):
    """Convolutions down, upsampling and convolutions up, group norms."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(
            [nn.Conv2d(width << i, width << (i + 1), 3, stride=2, padding=1) for i in range(levels)]
        )
        self.norms = nn.ModuleList([nn.GroupNorm(8, width << (i + 1)) for i in range(levels)])
        self.up = nn.ModuleList(
            [nn.Conv2d(width << (i + 1), width << i, 3, padding=1) for i in reversed(range(levels))]
        )
        self.out = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Images to images, and how far apart they are when it is trained."""
        x = self.stem(images)
        for conv, norm in zip(self.down, self.norms, strict=True):
            x = functional.silu(norm(conv(x)))
        for conv in self.up:
            x = functional.silu(conv(functional.interpolate(x, scale_factor=2.0)))
        made = self.out(x)
        return {"logits": made, "loss": functional.mse_loss(made, images)}


class Recurrent(nn.Module):
    """Tokens through an LSTM or GRU to a class a token."""

    def __init__(
        self, kind: str, vocab: int, hidden: int, layers: int, *, two_way: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        cell = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind]
        self.cells = cell(hidden, hidden, layers, batch_first=True, bidirectional=two_way)
        self.head = nn.Linear(hidden * (1 + two_way), vocab)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Token ids to logits."""
        x, _ = self.cells(self.embedding(input_ids))
        logits = self.head(x)
        if labels is None:
            return {"logits": logits}
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


class MessagePassing(nn.Module):
    """Nodes that add up what their neighbours say."""

    def __init__(self, features: int, hidden: int, layers: int, nodes: int, edges: int) -> None:
        super().__init__()
        widths = [features, *[hidden] * layers]
        self.messages = nn.ModuleList([nn.Linear(a, b) for a, b in itertools.pairwise(widths)])
        self.head = nn.Linear(hidden, CLASSES)
        at = torch.arange(edges)
        self.register_buffer("source", at % nodes)
        self.register_buffer("target", at * 7919 % nodes)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Node features `[N, F]` to a class a node."""
        for layer in self.messages:
            said = torch.index_select(layer(x), 0, self.source)
            x = torch.relu(torch.zeros_like(layer(x)).index_add(0, self.target, said))
        return classified(self.head(x), labels)
