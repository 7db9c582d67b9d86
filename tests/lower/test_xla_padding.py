"""Work of products and convolutions on a systolic array, against figures by hand."""

from __future__ import annotations

import pytest
import torch

from predictor.lower.xla import lower_xla
from predictor.lower.xla_backends import CPU, tpu
from predictor.lower.xla_matrix import padded_flops
from predictor.program import capture

CONV = {
    "batch": 2, "c_in": 192, "h_in": 8, "w_in": 8, "c_out": 256, "h_out": 8, "w_out": 8, "kh": 3,
    "kw": 3, "groups": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "fill"),
    [
        ({}, 256 / 192),  # channels fill up at each place, not 1,728 of a window to 1,792
        ({"c_in": 128}, 1.0),
        ({"c_in": 128, "c_out": 100}, 1.28),
        ({"c_in": 3}, 128 / 27),  # the whole window in the channels
        ({"c_in": 256, "groups": 2}, 1.0),
        # depthwise: as the convolution without groups, 64 channels of 128 twice over
        ({"c_in": 64, "c_out": 64, "groups": 64}, 64 * 4.0),
    ],
)
def test_a_convolution_fills_channels_at_each_place(changes, fill):
    assert padded_flops({**CONV, **changes}, 1000.0, tpu(128)) == pytest.approx(1000.0 * fill)


@pytest.mark.parametrize(("side", "fill"), [(128, 128 / 100 * 384 / 300), (256, 2.56 * 512 / 300)])
def test_a_product_fills_what_is_summed_and_its_columns(side, fill):
    dims = {"batch": 1, "m": 7, "n": 100, "k": 300}
    assert padded_flops(dims, 1000.0, tpu(side)) == pytest.approx(1000.0 * fill)


def test_attention_has_no_side_to_fill():
    dims = {"batch": 1, "heads": 8, "kv_heads": 8, "q_len": 64, "kv_len": 64, "head_dim": 64}
    assert padded_flops({**dims, "causal": 1}, 1000.0, tpu(128)) == 1000.0


def test_nothing_is_filled_elsewhere():
    assert padded_flops(CONV, 1000.0, CPU) == 1000.0


class Attends(torch.nn.Module):
    """Attention alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of a sequence to itself."""
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


def test_attention_of_a_pytorch_program_runs_in_bf16_too():
    """fp32 has no rate on a TPU: such programs ended in an error."""
    graph = capture(Attends(), torch.empty(2, 4, 64, 32), mode="infer")
    attention = [k for k in lower_xla(graph, tpu(128)).kernels if k.op == "attention"]
    assert [k.dtype for k in attention] == ["bf16"]
    assert [k.dtype for k in lower_xla(graph).kernels if k.op == "attention"] == ["fp32"]
