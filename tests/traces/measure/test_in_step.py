"""Captured calls beside profiled ones: what finds its partner, and what does not."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from predictor.lower.eager import lower_eager
from predictor.traces.measure.in_step import (
    _alignment,
    captured_calls,
    joined,
)
from predictor.traces.measure.profiled import CallNode, profiled_step, value_of
from predictor.traces.measure.program import RealProgram, prepared


class Block(nn.Module):
    """Attention, a convolution, a recurrent layer, dropout and norms in one."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.norm = nn.LayerNorm(16)
        self.drop = nn.Dropout(0.1)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.out = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        x = x + self.drop(y.transpose(1, 2).flatten(2))
        x, _ = self.lstm(x)
        x = functional.gelu(self.conv(x.transpose(1, 2)))
        return self.out(x.mean(-1))


def program(mode: str, optimizer: str | None = None) -> RealProgram:
    torch.manual_seed(0)
    return prepared(
        RealProgram("block", Block(), {}, (torch.randn(2, 6, 16),), mode=mode,
                    optimizer=optimizer, facts={"batch": 2})
    )  # fmt: skip


def joined_of(real: RealProgram):
    real.step()
    graph = real.graph()
    return joined(
        captured_calls(graph, lower_eager(graph)), profiled_step(real, "cpu", shapes=True)
    )


@pytest.mark.parametrize(
    ("mode", "optimizer"), [("infer", None), ("train", "adamw"), ("train", "sgd")]
)
def test_every_captured_call_of_a_step_is_found(mode, optimizer):
    found = joined_of(program(mode, optimizer))
    assert {c.node.op for c in found.captured if not c.calls} == set()
    pairs = {
        c.node.op: {call.name for call in c.calls}
        for c in found.captured if c.node.op.startswith("predictor.")
    }  # fmt: skip
    assert pairs["predictor.sdpa"] == {"aten::scaled_dot_product_attention"}
    assert pairs["predictor.rnn"] == {"aten::lstm"}
    if mode == "train":
        assert all(n.startswith("autograd::") for n in pairs["predictor.sdpa_backward"])
        assert all(n.startswith("autograd::") for n in pairs["predictor.rnn_backward"])
        [update] = pairs[f"predictor.{optimizer}"]
        assert update.startswith("Optimizer.step#")


def test_no_call_is_taken_twice_and_parts_stay_within_the_step():
    real = program("train", "adamw")
    found = joined_of(real)
    calls = [call for c in found.captured for call in c.calls] + found.unmatched
    inside = Counter(id(x) for call in calls for x in call.every())
    assert set(inside.values()) == {1}
    step = profiled_step(real, "cpu", shapes=True)
    again = joined(found.captured, step)
    value = value_of("cpu", 0.0)
    parts = [value(x) for c in again.captured for x in c.calls]
    parts += [value(x) for x in again.unmatched]
    assert 0 < sum(parts) <= step.host_us


def test_equal_shapes_decide_between_equal_names():
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (x + x).sum() + (y + y).sum()

    real = RealProgram("two", Two(), {}, (torch.randn(3, 4), torch.randn(5)), facts={"batch": 3})
    found = joined_of(real)
    adds = [c for c in found.captured if c.node.op == "aten.add"]
    assert [c.calls[0].shapes[0] for c in adds[:2]] == [(3, 4), (5,)]


def test_calls_of_the_device_alone_are_told():
    real = program("infer")
    graph = real.graph()
    calls = captured_calls(graph, lower_eager(graph))
    captured = [c for c in calls if c.node.op != "aten.gelu"]
    found = joined(captured, profiled_step(real, "cpu", shapes=True))
    assert [c.name for c in found.unmatched] == ["aten::gelu"]


def test_a_call_less_what_the_profiler_took_for_the_calls_inside():
    leaf = CallNode(name="aten::add", shapes=(), sequence=-1, host_us=3.0, device_us=7.0)
    outer = CallNode(
        name="aten::linear", shapes=(), sequence=-1, host_us=10.0, device_us=7.0, inside=[leaf],
        calls=1,
    )  # fmt: skip
    assert value_of("cpu", 2.0)(outer) == 8.0
    assert value_of("cpu", 2.0)(leaf) == 3.0
    assert value_of("cuda", 2.0)(outer) == 7.0


def test_the_alignment_is_the_best_one_in_order():
    score = np.array([[1, 0, 3], [3, 0, 0], [0, 3, 1]])
    assert _alignment(score) == [(1, 0), (2, 1)]
    assert _alignment(np.zeros((2, 2), dtype=int)) == []
