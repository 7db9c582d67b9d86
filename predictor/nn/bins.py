"""Numbers as positions in bins: a network then bends where trees would cut.

Each column is cut at quantiles of the training rows; a value becomes one number a bin, from 0
(below) to 1 (above), rising inside it (piecewise linear encoding, Gorishniy et al., NeurIPS 2022,
"On embeddings for numerical features in tabular deep learning"). Beyond the training range it stays
what it is at the range's end.

Legend: N kernels, F features, K bins of all columns, H hidden width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

MOST_BINS = 32
"""Of one column."""
UNUSED = 1e30
"""Lower edge of a place that has no bin: no value reaches it."""


class BinLayer(nn.Module):
    """A linear layer over the bins of N rows of features."""

    column_K: Tensor
    low_K: Tensor
    width_K: Tensor

    def __init__(self, bins: int, hidden: int) -> None:
        super().__init__()
        self.register_buffer("column_K", torch.zeros(bins, dtype=torch.long))
        self.register_buffer("low_K", torch.full((bins,), UNUSED))
        self.register_buffer("width_K", torch.ones(bins))
        self.linear = nn.Linear(bins, hidden, bias=False)

    def cut(self, x_NF: Tensor) -> None:
        """Place the bins at quantiles of training rows; columns of few values get few bins.

        Raises:
            ValueError: there are fewer places than two for each column that varies.
        """
        edges = _edges(x_NF, len(self.column_K))
        at = 0
        for column, cuts in enumerate(edges):
            count = max(len(cuts) - 1, 0)
            self.column_K[at : at + count] = column
            self.low_K[at : at + count] = cuts[:-1]
            self.width_K[at : at + count] = cuts[1:] - cuts[:-1]
            at += count

    def forward(self, x_NF: Tensor) -> Tensor:
        """(N, H) sum over the bins of each row."""
        inside = (x_NF[:, self.column_K] - self.low_K) / self.width_K
        out: Tensor = self.linear(inside.clamp(0.0, 1.0))
        return out


def _edges(x_NF: Tensor, budget: int) -> list[Tensor]:
    """Edges by column: as many quantiles each as all together have places for."""
    ordered_NF = x_NF.double().sort(dim=0).values  # once for all numbers of quantiles
    found: list[Tensor] = []
    for count in range(MOST_BINS, 1, -1):
        cuts = _quantiles(ordered_NF, count)
        found = [torch.unique(cuts[:, f].float()) for f in range(cuts.shape[1])]
        found = [c if len(c) > 2 else c[:0] for c in found]
        if sum(max(len(c) - 1, 0) for c in found) <= budget:
            return found
    raise ValueError(f"{budget} bins for {len(found)} columns: two a column are needed at least")


def _quantiles(ordered_NF: Tensor, count: int) -> Tensor:
    """(count + 1, F) evenly spaced quantiles of sorted rows, linear between them."""
    if not len(ordered_NF):
        return ordered_NF
    place = torch.linspace(0, 1, count + 1, dtype=torch.float64) * (len(ordered_NF) - 1)
    below, above = place.floor().long(), place.ceil().long()
    return torch.lerp(ordered_NF[below], ordered_NF[above], (place - below)[:, None])
