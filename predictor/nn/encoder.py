"""What a kernel is, its neighbours left out: features and token to a hidden state.

Legend: N kernels, F features, T width of a token's embedding, H hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from predictor.nn.bins import BinLayer

MIN_SCALE = 0.05
"""Columns that vary less than this in training are left unscaled."""
BLIND = 1e30
"""Scale of columns that are not read."""
FAR = 6.0
"""Scaled features are cut off there."""


class KernelEncoder(nn.Module):
    """Layers over the scaled features, their bins and the embedding of the token."""

    x_mean_F: Tensor
    x_scale_F: Tensor

    def __init__(
        self, features: int, token_width: int, hidden: int, depth: int, bins: int, dropout: float
    ) -> None:
        super().__init__()
        self.register_buffer("x_mean_F", torch.zeros(features))
        self.register_buffer("x_scale_F", torch.ones(features))
        layers: list[nn.Module] = []
        width = features + token_width
        for _ in range(depth):
            layers += [nn.Linear(width, hidden), nn.SiLU(), nn.Dropout(dropout)]
            width = hidden
        self.encoder = nn.Sequential(*layers)
        self.binned = BinLayer(bins, hidden) if bins else None

    def scale(self, x_NF: Tensor) -> None:
        """Take mean and spread of each column from training rows, if there are any."""
        if not len(x_NF):
            return
        scale_F = x_NF.std(0, correction=int(len(x_NF) > 1))
        self.x_mean_F.copy_(x_NF.mean(0))
        self.x_scale_F.copy_(torch.where(scale_F < MIN_SCALE, torch.ones_like(scale_F), scale_F))

    def blind(self, columns: Sequence[int]) -> None:
        """Scale columns so that their values come out as zero."""
        self.x_scale_F[list(columns)] = BLIND

    def silence(self, constant_F: Tensor) -> None:
        """Take the weights off features that did not vary in training.

        They were never learned: another value of such a feature would add noise.
        """
        first = self.encoder[0]
        assert isinstance(first, nn.Linear)
        with torch.no_grad():
            first.weight[:, : len(constant_F)][:, constant_F] = 0.0

    def forward(self, x_NF: Tensor, embedded_NT: Tensor) -> Tensor:
        """(N, H) hidden states."""
        scaled_NF = ((x_NF - self.x_mean_F) / self.x_scale_F).clamp(-FAR, FAR)
        first, *rest = self.encoder
        h_NH: Tensor = first(torch.cat([scaled_NF, embedded_NT], dim=1))
        if self.binned is not None:
            h_NH = h_NH + self.binned(x_NF)
        for layer in rest:
            h_NH = layer(h_NH)
        return h_NH
