"""Kernels under `torch.compile`, as a checkpoint of eager kernels predicts them."""

import pytest
import torch
from torch import nn

import predictor
from predictor.cost.rules import kernel_cost
from predictor.features.table import table_from_graph
from predictor.nn.rising import alone


@pytest.mark.parametrize("device", ["nvidia-l4", "nvidia-a100-sxm-80gb", "nvidia-rtx-4090"])
def test_fusing_makes_no_kernel_of_an_encoder_longer(device):
    layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True).eval()
    x = torch.empty(8, 128, 256)
    eager = predictor.estimate(layer, x, device=device).kernels
    compiled = predictor.estimate(layer, x, device=device, compile=True).kernels
    assert compiled["name"].tolist() == eager["name"].tolist()
    assert (compiled["latency_us"] <= 1.0001 * eager["latency_us"]).all()
    assert compiled["latency_us"].sum() < eager["latency_us"].sum()


def test_a_kernel_alone_has_the_traffic_of_its_rule(make_kernel, chain):
    kernel = make_kernel("layer_norm", rows=64, cols=128)
    graph = chain([kernel])
    fused = table_from_graph(graph)
    fused.read_bytes[0] *= 0.1
    cost = kernel_cost("layer_norm", {"rows": 64, "cols": 128}, "fp32")
    assert alone(fused).read_bytes[0] == pytest.approx(float(cost.read_bytes))
    assert alone(fused).write_bytes[0] == pytest.approx(float(cost.write_bytes))
