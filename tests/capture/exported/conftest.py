"""Small programs, exported, and graphs made comparable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from predictor.graph.ir import OpGraph, TensorSpec

torch.set_num_threads(1)


class Vision(nn.Module):
    """Convolution, batch norm, dropout, a buffer that is not saved, a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("mask", torch.ones(8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(self.norm(self.conv(x)).relu_()) * self.mask.view(1, 8, 1, 1)
        return (y + torch.tensor(2.0)).flatten(1).softmax(-1)


class Language(nn.Module):
    """An encoder layer with attention, tied embeddings, and a mapping as its output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.head = nn.Linear(32, 100, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.head(self.layer(self.embed(tokens)))}


def mlp() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), torch.zeros(3, 8)


def language() -> tuple[nn.Module, torch.Tensor]:
    return Language(), torch.zeros(4, 16, dtype=torch.long)


PROGRAMS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "mlp": mlp,
    "lstm": lambda: (nn.LSTM(8, 16, 2, batch_first=True), torch.zeros(4, 6, 8)),
    "vision": lambda: (Vision(), torch.zeros(2, 3, 8, 8)),
    "language": language,
}


def comparable(graph: OpGraph) -> list[tuple[Any, ...]]:
    """The nodes, storages numbered in order of sight."""
    seen: dict[int, int] = {}

    def spec(one: TensorSpec) -> tuple[Any, ...]:
        place = seen.setdefault(one.storage_id, len(seen))
        sizes = (one.storage_bytes, one.touched_bytes)
        return (one.shape, one.dtype, place, *sizes, one.role, one.layout)

    return [
        (n.op, n.phase, [spec(t) for t in n.inputs], [spec(t) for t in n.outputs], dict(n.attrs),
         n.deps, n.module)
        for n in graph.nodes
    ]  # fmt: skip


@pytest.fixture
def nodes() -> Callable[[OpGraph], list[tuple[Any, ...]]]:
    return comparable


@pytest.fixture
def program() -> Callable[[str], tuple[nn.Module, torch.Tensor]]:
    return lambda name: PROGRAMS[name]()


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., str]:
    """The file of a program: `saved(module, inputs)`."""

    def save(module: nn.Module, *inputs: torch.Tensor, **options: Any) -> str:
        path = tmp_path / "program.pt2"
        torch.export.save(torch.export.export(module, inputs, **options), path)
        return str(path)

    return save
