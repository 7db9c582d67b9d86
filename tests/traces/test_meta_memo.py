"""Captures with remembered shape rules are those without, hidden views included."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

from predictor.capture.torch import capture_module

SCRIPT = Path(__file__).parents[2] / "training" / "meta_memo.py"


@pytest.fixture(scope="module")
def memo():
    spec = importlib.util.spec_from_file_location("meta_memo", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MetaMemo


class Block(nn.Module):
    """Attention written out: its products end in a view that the schema does not tell."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48, bias=False)
        self.out = nn.Linear(16, 16)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, n, 3, 2, 8).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-2, -1)).mul_(0.35).softmax(-1)
        return x + self.out((a @ v).transpose(1, 2).reshape(b, n, c))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 4, 4)
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.drop(self.blocks(self.stem(x).flatten(2).transpose(1, 2)).mean(1))


@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize("amp", [None, "fp16"])
def test_the_graph_is_the_same(memo, mode, amp):
    with torch.device("meta"):
        module, images = Net(), torch.empty(4, 3, 16, 16)

    def captured():
        return capture_module(module, images, mode=mode, amp=amp, optimizer="sgd")

    plain = captured()
    remembering = memo()
    with remembering:
        captured()
        again = captured()  # every rule is known by now
    assert again == plain
    assert len(remembering._forms) > 10


def test_a_view_is_not_remembered(memo):
    x = torch.empty(4, 6, device="meta")
    with memo() as remembering:
        for _ in range(2):
            y = torch.ops.aten._unsafe_view(x, [24])
            assert y.untyped_storage()._cdata == x.untyped_storage()._cdata
        z = [x * 2 for _ in range(2)]
    assert len(remembering._forms) == 1
    assert z[0].untyped_storage()._cdata != z[1].untyped_storage()._cdata
