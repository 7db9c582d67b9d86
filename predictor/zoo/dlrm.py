"""DLRM (Naumov et al. 2019): embedding bags, a bottom and a top MLP, pairwise interactions.

Default sizes are those of the published Criteo Kaggle run.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictor.zoo.entry import Inputs

# B batch, C categorical features, D embedding size

CRITEO_KAGGLE = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992,
    5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Rows of the 26 tables: distinct values of each categorical feature in the Kaggle data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DlrmConfig:
    """Sizes of a DLRM."""

    tables: tuple[int, ...] = CRITEO_KAGGLE
    width: int = 16
    """Embedding size, and output of the bottom MLP."""
    dense: int = 13
    bottom: tuple[int, ...] = (512, 256, 64, 16)
    top: tuple[int, ...] = (512, 256, 1)
    sparse: bool = False
    """Gradients of the tables as rows instead of whole tables; AdamW does not take them."""


def mlp(inputs: int, widths: tuple[int, ...], *, last: bool) -> nn.Sequential:
    """Linear layers with ReLU between, and behind the last where asked for."""
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(itertools.pairwise((inputs, *widths))):
        layers.append(nn.Linear(before, after))
        if last or index < len(widths) - 1:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    """Click-through-rate model; one value a bag and feature."""

    def __init__(self, config: DlrmConfig) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            [
                nn.EmbeddingBag(rows, config.width, mode="sum", sparse=config.sparse)
                for rows in config.tables
            ]
        )
        vectors = len(config.tables) + 1
        self.bottom = mlp(config.dense, config.bottom, last=True)
        self.top = mlp(config.width + vectors * (vectors - 1) // 2, config.top, last=False)
        self.rows: Tensor
        self.cols: Tensor
        rows, cols = torch.tril_indices(vectors, vectors, -1)
        self.register_buffer("rows", rows.clone(), persistent=False)
        self.register_buffer("cols", cols.clone(), persistent=False)

    def forward(
        self, dense: Tensor, indices: Tensor, offsets: Tensor, labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Dense features `[B, 13]`, indices and offsets `[C*B]` by feature, to a logit each."""
        x = self.bottom(dense)
        bags = (len(self.bags), dense.shape[0])
        found = [
            bag(index, offset)
            for bag, index, offset in zip(
                self.bags, indices.view(bags), offsets.view(bags), strict=True
            )
        ]
        vectors = torch.cat([x, *found], dim=1).view(dense.shape[0], -1, x.shape[1])
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        pairs = products[:, self.rows, self.cols]
        logits = self.top(torch.cat([x, pairs], dim=1)).squeeze(1)
        if labels is None:
            return {"logits": logits}
        loss = functional.binary_cross_entropy_with_logits(logits.float(), labels.float())
        return {"loss": loss, "logits": logits}


def clicks(batch: int, seq: int, train: bool) -> Inputs:
    """Dense features, one categorical value a feature, and whether it was clicked."""
    config = DlrmConfig()
    values = len(config.tables) * batch
    inputs = {
        "dense": torch.empty(batch, config.dense),
        "indices": torch.empty(values, dtype=torch.long),
        "offsets": torch.empty(values, dtype=torch.long),
    }
    return {**inputs, "labels": torch.empty(batch)} if train else inputs
