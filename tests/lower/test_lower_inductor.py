"""Fused kernels: what goes into one, what stays apart, what is computed again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from predictor import capture
from predictor.lower.inductor import compiled, kernel_names


def kernels(module, *inputs, mode="infer", backend="cuda", **given):
    found = {}
    for one in compiled(capture(module, inputs, mode=mode, **given), backend=backend):
        found[one.phase] = (one.calls, kernel_names(one))
    return found


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def test_a_chain_of_pointwise_calls_is_one_kernel():
    found = kernels(Of(lambda x: torch.relu(x * 2 + 1).sigmoid()), torch.empty(64, 32))
    assert found == {"forward": (1, ["poi_fused_add_mul_relu_sigmoid_2048x1"])}


def test_an_mlp_has_one_kernel_behind_each_product():
    body = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 64))
    calls, names = kernels(nn.Sequential(*body, nn.Softmax(-1)), torch.empty(32, 64))["forward"]
    assert calls == 4  # two products, each with a kernel behind it
    assert names == ["per_fused_gelu_native_layer_norm_32x128", "per_fused__softmax_32x64"]


@pytest.mark.parametrize(("backend", "calls"), [("cuda", 2), ("cpu", 1)])
def test_shapes_keep_kernels_apart_on_a_gpu_and_share_a_function_on_a_cpu(backend, calls):
    both = Of(lambda x, y: (x.exp(), y.exp()))
    found = kernels(both, torch.empty(8), torch.empty(9), backend=backend)
    assert found["forward"][0] == calls


def test_columns_are_summed_apart_from_rows():
    step = kernels(
        nn.LayerNorm(128), torch.empty(32, 128), mode="train", loss=lambda y: y.pow(2).mean()
    )
    assert step["backward"][0] == 1  # x needs no gradient: sums down the columns alone
