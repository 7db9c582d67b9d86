"""A graph convolutional network (Kipf and Welling 2017) with sparse products.

Sizes are those of the Open Graph Benchmark's baseline on ogbn-arxiv (Hu et al. 2020).
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from predictor.zoo.entry import Inputs

# N nodes, F features


@dataclass(frozen=True, slots=True, kw_only=True)
class GcnConfig:
    """Sizes of a GCN and of the graph it runs on."""

    nodes: int = 169_343
    stored: int = 2_484_941
    """Values of the adjacency: 2,315,598 of the undirected graph, and a self-loop a node."""
    labelled: int = 90_941
    """Nodes whose class is known in training."""
    features: int = 128
    hidden: int = 256
    classes: int = 40
    layers: int = 3
    dropout: float = 0.5


class GraphConvolution(nn.Module):
    """A linear layer, then the normalised adjacency times its result, and a bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """`[N, in]` to `[N, out]`."""
        return adjacency @ self.linear(x) + self.bias  # type: ignore[no-any-return]


class Gcn(nn.Module):
    """Graph convolutions with batch norm, ReLU and dropout between them."""

    def __init__(self, config: GcnConfig) -> None:
        super().__init__()
        widths = [config.features, *[config.hidden] * (config.layers - 1), config.classes]
        self.convolutions = nn.ModuleList(
            [GraphConvolution(a, b) for a, b in itertools.pairwise(widths)]
        )
        self.norms = nn.ModuleList([nn.BatchNorm1d(width) for width in widths[1:-1]])
        self.p = config.dropout

    def forward(
        self,
        x: Tensor,
        adjacency: Tensor,
        labelled: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Features `[N, F]` and the adjacency `[N, N]` (CSR) to log-probabilities by class."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=False):
            x = functional.relu(norm(convolution(x, adjacency)))
            x = functional.dropout(x, p=self.p, training=self.training)
        logits = self.convolutions[-1](x, adjacency).log_softmax(dim=-1)
        if labels is None or labelled is None:
            return {"logits": logits}
        return {"loss": functional.nll_loss(logits[labelled], labels), "logits": logits}


def sparse_matrix(rows: int, stored: int) -> Tensor:
    """A square CSR matrix on the meta device, of which only the sizes are known."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)
        return torch.sparse_csr_tensor(
            torch.empty(rows + 1, dtype=torch.long, device="meta"),
            torch.empty(stored, dtype=torch.long, device="meta"),
            torch.empty(stored, device="meta"),
            size=(rows, rows),
        )


def citation_graph(batch: int, seq: int, train: bool) -> Inputs:
    """`batch` graphs side by side: features, adjacency, and the known classes in training."""
    config = GcnConfig()
    inputs = {
        "x": torch.empty(batch * config.nodes, config.features),
        "adjacency": sparse_matrix(batch * config.nodes, batch * config.stored),
    }
    if train:
        for name in ("labelled", "labels"):
            inputs[name] = torch.empty(batch * config.labelled, dtype=torch.long)
    return inputs
