"""channels_last is lost by meta convolutions; captured layouts equal those of a real run."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from predictor.capture.torch import capture_module


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 8, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, channels, 3, padding=1, groups=4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.conv2(self.relu(self.bn1(self.conv1(x)))) + x)


def build():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2),
        nn.MaxPool2d(2),
        Block(16),
        nn.GELU(),
        nn.Upsample(scale_factor=2),
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


class _Log(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        outputs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        name = func.overloadpacket.__name__
        if outputs and name not in ("detach", "alias"):
            self.calls.append((name, [(tuple(t.shape), _layout(t)) for t in outputs]))
        return result


def _layout(tensor):
    if tensor.is_contiguous():
        return "contiguous"
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return "channels_last"
    return "strided"


@pytest.mark.parametrize("weight_last", [False, True])
@pytest.mark.parametrize("input_last", [False, True])
def test_every_layout_of_a_training_step_is_that_of_a_real_run(weight_last, input_last):
    model, x = build(), torch.ones(2, 3, 32, 32)
    if weight_last:
        model = model.to(memory_format=torch.channels_last)
    if input_last:
        x = x.to(memory_format=torch.channels_last)
    graph = capture_module(model, x, mode="train", loss=lambda y: y.mean(), optimizer=None)
    with _Log() as log:
        model(x).mean().backward()
    captured = [
        (n.op.removeprefix("aten."), [(s.shape, s.layout) for s in n.outputs])
        for n in graph.nodes
        if n.outputs
    ]
    assert captured == log.calls


def test_channels_last_reaches_the_end_of_the_convolutions():
    model = build().to(memory_format=torch.channels_last)
    graph = capture_module(model, torch.empty(2, 3, 32, 32))
    layouts = {n.outputs[0].layout for n in graph.nodes if n.op == "aten.convolution"}
    assert layouts == {"channels_last"}
