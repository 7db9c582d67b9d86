"""Capturing changes nothing, and does the same every time."""

import copy
import random
import threading

import pytest
import torch
from torch import nn

from predictor.capture.torch import capture_module, capture_step
from predictor.errors import CaptureError


class Stateful(nn.Module):
    """Writes to itself, draws random numbers, holds things that cannot be copied."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.calls = 0
        self.lock = threading.Lock()
        self.parts = [nn.Linear(4, 4)]

    def forward(self, x):
        self.calls += 1
        self.seen = x
        keep = torch.rand([]) < 0.5 or random.random() < 0.5
        x = self.parts[0](self.drop(self.norm(self.layer(x))))
        return x if keep else x * 2


def _compiled_call(layer):
    layer.compile()
    return layer


@pytest.mark.parametrize(
    "compiled",
    [
        lambda: torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU())),
        lambda: _compiled_call(nn.Sequential(nn.Linear(4, 4), nn.ReLU())),
        lambda: nn.Sequential(torch.compile(nn.Linear(4, 4)), nn.ReLU()),
        lambda: nn.Sequential(_compiled_call(nn.Linear(4, 4)), torch.compile(nn.ReLU())),
        lambda: torch.compile(torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))),
    ],
)
def test_torch_compile_is_left_out_at_any_depth(compiled):
    eager = capture_module(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4))
    model = compiled()
    graph = capture_module(model, torch.ones(2, 4))
    assert [n.op for n in graph.nodes] == [n.op for n in eager.nodes]
    assert graph.workload.parameters == 20
    assert any("torch.compile is left out" in warning for warning in graph.workload.warnings)
    step = capture_step(lambda m, x: m(x), (model, torch.ones(2, 4)))
    assert [n.op for n in step.nodes] == [n.op for n in eager.nodes]
    assert not eager.workload.warnings


def _state(model):
    return copy.deepcopy(model.state_dict())


def test_module_inputs_and_generators_are_as_before():
    torch.manual_seed(3)
    random.seed(3)
    model, x = Stateful(), torch.randn(8, 4, requires_grad=True)
    hook_calls = []
    model.layer.register_forward_hook(lambda *_: hook_calls.append(1))
    model(x).sum().backward()
    model.norm.eval()
    before, grads = _state(model), [p.grad.clone() for p in model.parameters()]
    x_grad = x.grad.clone()
    hooks, names = len(model.layer._forward_hooks), set(vars(model))
    drawn, drawn_python = torch.get_rng_state(), random.getstate()
    capture_module(model, x, mode="train", amp="bf16")
    capture_module(model, x)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert random.getstate() == drawn_python
    assert (model.training, model.norm.training, model.calls) == (True, False, 1)
    assert set(vars(model)) == names and len(model.layer._forward_hooks) == hooks
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(torch.equal(g, p.grad) for g, p in zip(grads, model.parameters(), strict=True))
    assert torch.equal(x.grad, x_grad)
    assert not torch.is_autocast_enabled("cuda")
    assert all(p.device.type == "cpu" for p in model.parameters())


def test_twice_gives_the_identical_graph():
    model, x = Stateful(), torch.randn(8, 4)
    first = capture_module(model, x, mode="train", amp="fp16")
    assert first == capture_module(model, x, mode="train", amp="fp16")


def test_a_failure_restores_the_process():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))
    init = torch.autocast.__init__
    with pytest.raises(CaptureError):
        capture_module(model, torch.empty(2, 4), mode="train", amp="bf16")
    assert torch.autocast.__init__ is init
    assert not torch.is_autocast_enabled("cuda")
    assert torch.is_grad_enabled()
    assert model[0](torch.ones(2, 4)).device.type == "cpu"


def test_optimizer_state_is_as_before():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    before, weight = copy.deepcopy(optimizer.state_dict()), model.weight.detach().clone()

    def step(model, optimizer, x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    capture_step(step, (model, optimizer, torch.empty(2, 4)))
    after = optimizer.state_dict()
    assert torch.equal(model.weight, weight)
    assert torch.equal(after["state"][0]["exp_avg"], before["state"][0]["exp_avg"])
    assert model.weight.grad is not None
    assert "step" not in vars(optimizer)


def test_meta_parameters_get_no_gradient():
    with torch.device("meta"):
        model = nn.Linear(4, 4)
    capture_module(model, torch.empty(2, 4), mode="train")
    assert model.weight.grad is None
