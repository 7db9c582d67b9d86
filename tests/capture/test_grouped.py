"""Grouped matrix products in the dtypes that PyTorch's own shape rule refuses."""

import pytest
import torch
from torch import nn

from predictor.capture.torch import capture_module
from predictor.errors import CaptureError
from predictor.lower.eager import lower_eager


class Experts(nn.Module):
    """Four experts of 16 to 32."""

    def __init__(self, width=16):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, width, 32))

    def forward(self, x, ends):
        return torch._grouped_mm(x, self.weight, offs=ends).square().sum()


def capture(model, dtype):
    with torch.device("meta"):
        inputs = torch.empty(24, 16, requires_grad=True), torch.empty(4, dtype=torch.int32)
    return capture_module(model, inputs, mode="train", dtype=dtype, loss=lambda out: out)


@pytest.mark.parametrize(("dtype", "launches"), [("fp32", 4), ("fp16", 4), ("bf16", 1)])
def test_forward_and_both_gradients(dtype, launches):
    graph = lower_eager(capture(Experts(), dtype))
    grouped = [k for k in graph.kernels if k.op == "grouped_mm"]
    assert [k.phase for k in grouped] == ["forward", "backward", "backward"]
    assert all(k.flops == 2 * 24 * 16 * 32 for k in grouped)
    assert all(k.dims["groups"] == 4 and k.launches == launches for k in grouped)
    assert {k.dtype for k in grouped} == {dtype}


def test_operands_that_do_not_fit():
    with pytest.raises(CaptureError, match="grouped product"):
        capture(Experts(width=8), "fp32")
