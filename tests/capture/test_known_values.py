"""Values that follow from inputs and constants may be read; those of weights may not."""

import pytest
import torch
from torch import nn

from predictor.capture.torch import capture_module
from predictor.errors import CaptureError


class Call(nn.Module):
    def __init__(self, function, **modules):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *args):
        return self.function(self, *args)


def final_shape(function, *inputs):
    graph = capture_module(Call(lambda _, *args: function(*args)), inputs)
    return graph.nodes[-1].outputs[0].shape, graph.workload.warnings


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x, n: x[: n.max().item()] * 1, (3, 4)),
        (lambda x, n: x * 1 if (n > 0).all() else x[:1] * 1, (8, 4)),
        (lambda x, n: x[: n.tolist()[0]] * 1, (2, 4)),
        (lambda x, n: x[torch.arange(8, device=x.device) < 5], (5, 4)),
        (lambda x, n: x[(torch.arange(8, device=x.device) < 5).nonzero().squeeze(1)], (5, 4)),
        (lambda x, n: torch.repeat_interleave(x[:2], n, dim=0), (5, 4)),
        (lambda x, n: torch.zeros(int(torch.ones_like(n).sum()), device=x.device) + 1, (2,)),
        (lambda x, n: x[: int(n.clone().add_(1)[0])] * 1, (3, 4)),
        (lambda x, n: x[: int(torch.tensor(3, device=x.device))] * 1, (3, 4)),
    ],
)
def test_shapes_that_follow_from_values(function, shape):
    got, warnings = final_shape(function, torch.empty(8, 4), torch.tensor([2, 3]))
    assert got == shape
    assert any("reads tensor values" in w for w in warnings)


def test_nothing_read_nothing_said():
    _, warnings = final_shape(lambda x, n: x * n.sum(), torch.empty(8), torch.tensor([2, 3]))
    assert warnings == ()


def test_a_value_that_was_overwritten_by_weights_is_forgotten():
    def body(self, x):
        count = torch.ones(4, device=x.device)
        count.add_(self.layer(x)[0])
        return x if count[0] > 0 else x + 1

    with pytest.raises(CaptureError, match="a branch"):
        capture_module(Call(body, layer=nn.Linear(4, 4)), torch.ones(2, 4))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda h: h.sum().item(), ".item()"),
        (lambda h: h if h.sum() > 0 else -h, "a branch"),
        (lambda h: h[h > 0], "boolean mask"),
        (lambda h: h.nonzero(), "nonzero"),
        (lambda h: h.tolist(), ".tolist()"),
        (lambda h: h.detach().numpy(), ".numpy()"),
        (lambda h: torch.unique(h), "unique"),
        (lambda h: h.masked_select(h > 0), "masked_select"),
        (lambda h: torch.rand(3, device=h.device).sum().item(), ".item()"),
    ],
)
def test_values_of_weights_and_random_numbers_are_refused(function, words):
    model = nn.Sequential(Call(lambda self, x: function(self.layer(x)), layer=nn.Linear(4, 4)))
    with pytest.raises(CaptureError) as caught:
        capture_module(model, torch.ones(2, 4), name="mine")
    message = str(caught.value)
    assert words in message
    assert "cannot capture mine in module '0', test_known_values.py:" in message
    assert "pass the value as a Python number" in message
    assert "\n" not in message


def test_setting_by_mask_needs_no_value():
    def body(self, x):
        h = self.layer(x)
        h[h > 0] = 1.0
        return h.masked_fill(h < 0, 0.0)

    graph = capture_module(Call(body, layer=nn.Linear(4, 4)), torch.ones(2, 4))
    assert graph.workload.warnings == ()


class LoopedExperts(nn.Module):
    """Eight experts visited one by one, two a token, found by `nonzero`, `where` or `.tolist()`."""

    def __init__(self, way, scores=8):
        super().__init__()
        self.router = nn.Linear(16, scores, bias=False)
        self.experts = nn.ModuleList([nn.Linear(16, 32, bias=False) for _ in range(8)])
        self.way = way

    def forward(self, x):
        _, picked = torch.topk(self.router(x).softmax(-1), 2, dim=-1)
        out = x.new_zeros(x.shape[0], 32)
        if self.way == "sizes":
            order = picked.flatten().argsort()
            sizes = torch.bincount(picked.flatten(), minlength=8).tolist()
            parts = x[order // 2].split(sizes)
            return torch.cat([e(part) for e, part in zip(self.experts, parts, strict=True)])
        for index, expert in enumerate(self.experts):
            if self.way == "where":
                token, _ = torch.where(picked == index)
            else:
                token = (picked == index).any(-1).nonzero().squeeze(-1)
            out.index_add_(0, token, expert(x[token]))
        return out


@pytest.mark.parametrize("way", ["where", "nonzero", "sizes"])
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_routing_is_taken_as_balanced_and_said(way, mode):
    x = torch.empty(64, 16, device="meta", requires_grad=True)
    graph = capture_module(LoopedExperts(way), x, mode=mode, loss=lambda y: y.square().sum())
    products = [n for n in graph.nodes if n.op == "aten.mm" and n.module.startswith("experts")]
    forward = [n for n in products if n.phase == "forward"]
    assert [n.inputs[0].shape for n in forward] == [(64 * 2 // 8, 16)] * 8
    assert len(products) == (8 if mode == "infer" else 24)
    (said,) = graph.workload.warnings
    assert "taken as balanced" in said
    reads = 2 if way == "sizes" else 8  # the counts and the list, or an expert's tokens each
    assert f"reads: {reads};" in said


def test_ranking_a_vocabulary_is_no_routing():
    with pytest.raises(CaptureError, match="depends on values"):
        capture_module(LoopedExperts("where", scores=1000), torch.empty(64, 16))
