import pytest
import torch
from torch import nn

from predictor.capture.torch import capture_module
from predictor.lower.eager import lower_eager
from predictor.lower.inference import fused_graph, lower_inference

# bytes of fp32 tensors below: 4 an element


def _names(module: nn.Module, *inputs: torch.Tensor) -> list[str]:
    return [k.name for k in lower_inference(capture_module(module, inputs)).kernels]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)) + x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 32), nn.Linear(32, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.down(nn.functional.gelu(self.up(x)))
        return y + self.norm(y)


class Attention(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.transpose(-2, -1) / 4.0).softmax(-1) @ v


class Rms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def test_a_convolution_takes_norm_sum_and_activation():
    x = torch.ones(2, 8, 16, 16)
    graph = capture_module(Residual(), x)
    eager, fused = lower_eager(graph), lower_inference(graph)
    assert len(eager.kernels) == 5  # convolution, bias, norm, sum, activation
    (kernel,) = fused.kernels
    assert kernel.op == "conv"
    assert kernel.matmul_flops == eager.kernels[0].matmul_flops
    images = 4 * x.numel()
    small = 4 * (8 * 8 * 9 + 8 + 4 * 8)  # weight, bias, and four vectors of the norm
    assert kernel.read_bytes == images + small  # the residual is the input, read once
    assert kernel.write_bytes == images


def test_a_product_takes_its_activation_and_a_norm_the_sum_before_it():
    names = _names(Block(), torch.ones(2, 5, 8))
    assert names == ["addmm+gelu", "aten.addmm", "native_layer_norm+add", "aten.add"]


def test_written_out_attention_is_one_kernel():
    q = torch.ones(2, 4, 64, 16)
    graph = capture_module(Attention(), (q, q.clone(), q.clone()))
    (kernel,) = lower_inference(graph).kernels
    assert kernel.op == "attention"
    assert dict(kernel.dims)["heads"] == 4
    assert kernel.matmul_flops == 4 * 2 * 4 * 64 * 64 * 16
    assert kernel.bytes == 4 * 4 * q.numel()  # q, k, v, result: the scores reach no memory


def test_a_written_out_rms_norm_is_one_kernel():
    (kernel,) = lower_inference(capture_module(Rms(), torch.ones(4, 16))).kernels
    assert kernel.op == "rms_norm"
    assert kernel.read_bytes == 4 * (4 * 16 + 16)


def test_pointwise_chains_are_one_kernel():
    class Chain(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.exp(x * y + 1.0).sqrt()

    x = torch.ones(64, 64)
    (kernel,) = lower_inference(capture_module(Chain(), (x, x.clone()))).kernels
    assert kernel.bytes == 4 * 3 * 64 * 64
    assert kernel.dims["inputs"] == 2


def test_what_others_read_is_still_written():
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = x.exp()
            return y + 1.0, y.sqrt().sum()

    assert len(_names(Twice(), torch.ones(8, 8))) == 4


@pytest.mark.parametrize("module", [Residual(), Block(), Rms()], ids=lambda m: type(m).__name__)
def test_dependencies_point_back(module: nn.Module):
    shape = {"Residual": (2, 8, 4, 4), "Block": (2, 5, 8), "Rms": (4, 16)}[type(module).__name__]
    graph = fused_graph(capture_module(module, torch.ones(shape)))
    for number, node in enumerate(graph.nodes):
        assert all(dep < number for dep in node.deps)


def test_the_assumption_is_said():
    graph = lower_inference(capture_module(Residual(), torch.ones(1, 8, 4, 4)))
    assert "assumes fused inference" in graph.workload.warnings[-1]
