"""Ten small programs whose kernels are counted under TorchInductor: a loss comes out of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Made = tuple[nn.Module, tuple[Tensor, ...]]


def mlp() -> Made:
    """Three linear layers with GELU and a cross-entropy."""
    body = nn.Sequential(
        nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    return Classifier(body), (torch.randn(64, 128), torch.zeros(64, dtype=torch.long))


def cnn() -> Made:
    """Convolutions with bias, max pooling, and a linear head."""
    body = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 8 * 8, 10),
    )  # fmt: skip
    return Classifier(body), images(8, 32)


def resnet() -> Made:
    """Basic residual blocks with batch norm, two stages."""
    body = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        Basic(16, 16, 1), Basic(16, 16, 1), Basic(16, 32, 2), Basic(32, 32, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    return Classifier(body), images(8, 32)


def depthwise() -> Made:
    """Inverted residuals with depthwise convolutions, squeeze-excite and SiLU."""
    body = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.SiLU(),
        Inverted(16, 32), Inverted(32, 32), Inverted(32, 48),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10),
    )  # fmt: skip
    return Classifier(body), images(8, 32)


def convnext() -> Made:
    """ConvNeXt blocks: depthwise 7x7, layer norm over channels, layer scale."""
    body = nn.Sequential(
        nn.Conv2d(3, 32, 4, 4), *(Next(32) for _ in range(2)), nn.Conv2d(32, 64, 2, 2),
        *(Next(64) for _ in range(2)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    return Classifier(body), images(4, 64)


def bert_layer() -> Made:
    """Two post-norm encoder layers on embedded tokens."""
    return Encoder(post=True), (torch.zeros(4, 64, dtype=torch.long),
                                torch.zeros(256, dtype=torch.long))  # fmt: skip


def gpt2_block() -> Made:
    """Two pre-norm causal blocks with position embeddings."""
    return Encoder(post=False), (torch.zeros(4, 64, dtype=torch.long),
                                 torch.zeros(256, dtype=torch.long))  # fmt: skip


def vit() -> Made:
    """A small vision transformer with a class token."""
    return Classifier(Vit()), images(4, 32)


def mixer() -> Made:
    """MLP-Mixer: linear layers over tokens and channels."""
    return Classifier(Mixer()), images(4, 32)


def norms() -> Made:
    """Norms, softmaxes and written-out attention on rows that nothing multiplies between."""
    return Norms(), (torch.randn(32, 128), torch.zeros(32, dtype=torch.long))


MODELS: dict[str, Callable[[], Made]] = {
    f.__name__: f
    for f in (mlp, cnn, resnet, depthwise, convnext, bert_layer, gpt2_block, vit, mixer, norms)
}
"""By name."""


def images(batch: int, size: int) -> tuple[Tensor, Tensor]:
    """Images and labels."""
    return torch.randn(batch, 3, size, size), torch.zeros(batch, dtype=torch.long)


class Classifier(nn.Module):
    """A network with its cross-entropy."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return functional.cross_entropy(self.body(x), target)


class Basic(nn.Module):
    """Residual block of two 3x3 convolutions."""

    def __init__(self, c: int, out: int, stride: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(c, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.c, self.d = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        same = c == out and stride == 1
        self.down = None if same else nn.Sequential(
            nn.Conv2d(c, out, 1, stride, bias=False), nn.BatchNorm2d(out)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Same spatial size over the stride."""
        y = self.d(self.c(functional.relu(self.b(self.a(x)))))
        return functional.relu(y + (x if self.down is None else self.down(x)))


class Inverted(nn.Module):
    """Expand, depthwise, squeeze-excite, project."""

    def __init__(self, c: int, out: int) -> None:
        super().__init__()
        wide = 4 * c
        self.grow = nn.Sequential(nn.Conv2d(c, wide, 1, bias=False), nn.BatchNorm2d(wide),
                                  nn.SiLU())  # fmt: skip
        self.each = nn.Sequential(nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False),
                                  nn.BatchNorm2d(wide), nn.SiLU())  # fmt: skip
        self.down, self.up = nn.Conv2d(wide, c, 1), nn.Conv2d(c, wide, 1)
        self.out = nn.Sequential(nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out))
        self.same = c == out

    def forward(self, x: Tensor) -> Tensor:
        """Residual where the channels allow."""
        y = self.each(self.grow(x))
        gate = y.mean((2, 3), keepdim=True)
        y = self.out(y * torch.sigmoid(self.up(functional.silu(self.down(gate)))))
        return y + x if self.same else y


class Next(nn.Module):
    """ConvNeXt block."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.each, self.norm = nn.Conv2d(c, c, 7, padding=3, groups=c), nn.LayerNorm(c)
        self.up, self.down = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.gamma = nn.Parameter(torch.ones(c))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        y = self.norm(self.each(x).permute(0, 2, 3, 1))
        y = self.gamma * self.down(functional.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class Attention(nn.Module):
    """Self-attention of four heads through the framework's fused call."""

    def __init__(self, c: int, causal: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(c, 3 * c), nn.Linear(c, c), causal

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, c // 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Layer(nn.Module):
    """Transformer layer, norms before or after."""

    def __init__(self, c: int, post: bool) -> None:
        super().__init__()
        self.attention, self.post = Attention(c, causal=not post), post
        self.n1, self.n2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.up, self.down = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        if self.post:
            x = self.n1(x + self.attention(x))
            return self.n2(x + self.down(functional.gelu(self.up(x))))
        x = x + self.attention(self.n1(x))
        return x + self.down(functional.gelu(self.up(self.n2(x)), approximate="tanh"))


class Encoder(nn.Module):
    """Tokens to logits and loss."""

    def __init__(self, post: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(1000, 128), nn.Embedding(64, 128)
        self.first = nn.LayerNorm(128) if post else nn.Identity()
        self.layers = nn.Sequential(Layer(128, post), Layer(128, post))
        self.last = nn.Identity() if post else nn.LayerNorm(128)
        self.head = nn.Linear(128, 1000, bias=False)

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        at = torch.arange(ids.shape[1], device=ids.device)
        x = self.first(self.tokens(ids) + self.places(at))
        x = self.head(self.last(self.layers(x)))
        return functional.cross_entropy(x.flatten(0, 1), target)


class Vit(nn.Module):
    """Patches, class token, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 64, 8, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, 64))
        self.places = nn.Parameter(torch.zeros(1, 17, 64))
        self.layers = nn.Sequential(Layer(64, False), Layer(64, False))
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the class token."""
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


class Mix(nn.Module):
    """One Mixer layer."""

    def __init__(self, tokens: int, c: int) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.t = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.c = nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        x = x + self.t(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.c(self.n2(x))


class Mixer(nn.Module):
    """Patches, two layers, mean."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 64, 8, 8)
        self.layers = nn.Sequential(Mix(16, 64), Mix(16, 64))
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.layers(x)).mean(1))


class Norms(nn.Module):
    """Normalises, gates and mixes rows."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LayerNorm(128), nn.RMSNorm(128)
        self.groups, self.scale = nn.GroupNorm(4, 32), nn.Parameter(torch.ones(128))
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        y = torch.softmax(self.a(x), -1) * torch.sigmoid(self.b(x))
        z = self.groups(y.view(4, 32, 4, 8)).view(32, 128)
        z = torch.log_softmax(z * self.scale, -1) + torch.tanh(x)
        scores = z @ z.T
        mixed = torch.softmax(scores / 11.3, -1) @ z
        return functional.cross_entropy(self.head(functional.normalize(mixed, dim=-1)), target)


def build(name: str, seed: int = 0) -> Any:
    """Module and inputs of one of `MODELS`."""
    torch.manual_seed(seed)
    return MODELS[name]()
