"""Networks with random weights, releases of them, and small kernel graphs made by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from predictor.checkpoint import Release, load_release, save_release
from predictor.cost.rules import kernel_cost, launches
from predictor.features.columns import COLUMNS, columns_hash
from predictor.features.table import OP_NAMES
from predictor.graph.ir import Kernel, KernelGraph, Phase, Workload
from predictor.graph.ops import TOKENS
from predictor.nn.latency import LatencyPredictor, load_predictor
from predictor.nn.latency_net import LatencyNet, NetConfig
from predictor.nn.tokens import trunk_tokens

DEVICES = ("nvidia-a100-pcie-40gb", "nvidia-t4")
LEARNED = (("gemm", "fp32"), ("pointwise", "fp32"), ("softmax", "fp32"), ("layer_norm", "fp32"))
SCALES = {"default": 0.1, "matmul": 0.2}
CALIBRATION = {
    "level": 0.9,
    "isolated": {"seen": SCALES, "unseen": SCALES},
    "in_step": {"seen": SCALES, "unseen": {"default": 0.3}},
    "step": {"seen": {"total": 0.1, "forward": 0.15}, "unseen": {"total": 0.3}},
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def net_config(**sizes: float) -> NetConfig:
    values = {"hidden": 16, "depth": 1, "token_width": 4, "message_layers": 2, "hosts": 2, **sizes}
    return NetConfig(features=len(COLUMNS), tokens=len(TOKENS), ops=len(OP_NAMES), **values)


def random_net(seed: int = 0, *, scale: float = 0.2, **sizes: float) -> LatencyNet:
    """Every weight drawn at random, gates and heads included: nothing is zero by design."""
    net = LatencyNet(net_config(**sizes), trunk_tokens())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in net.named_parameters():
            drawn = scale * torch.randn(weight.shape, generator=generator)
            weight.copy_(weight + drawn if name.startswith(("host_", "log_")) else drawn)
    return net.eval()


@pytest.fixture
def make_net() -> Callable[..., LatencyNet]:
    return random_net


@pytest.fixture
def make_release(tmp_path: Path) -> Callable[..., Release]:
    """Write a release of random networks and read it back; `config` replaces parts of it."""

    def make(
        *,
        nets: int = 2,
        config: Mapping[str, object] | None = None,
        tensors: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] | None = None,
        scale: float = 0.2,
        sizes: Mapping[str, float] | None = None,
        **model: object,
    ) -> Release:
        network = net_config(**(sizes or {}))
        weights = {
            f"member{i}.{name}": value
            for i in range(nets)
            for name, value in random_net(i, scale=scale, **(sizes or {})).state_dict().items()
        }
        wide = torch.full((len(TOKENS), len(COLUMNS)), 1e30)
        weights |= {"range.low": -wide, "range.high": wide}
        parts: dict[str, object] = {
            "name": "random-v1",
            "model": {
                "kind": "latency_net",
                "network": {f: getattr(network, f) for f in network.__dataclass_fields__},
                "members": nets,
                "devices": list(DEVICES),
                "ops": list(OP_NAMES),
                "learned": [list(pair) for pair in LEARNED],
                **model,
            },
            "features": {"columns": list(COLUMNS), "hash": columns_hash()},
            "vocabulary": list(TOKENS),
            "calibration": CALIBRATION,
            "data": {},
            "training": {},
            **(config or {}),
        }
        folder = save_release(
            tmp_path / "release",
            config=parts,
            tensors=tensors(weights) if tensors else weights,
            metrics={},
            card="# random-v1\n",
            overwrite=True,
        ).path
        return load_release(folder)

    return make


@pytest.fixture
def make_predictor(make_release: Callable[..., Release]) -> Callable[..., LatencyPredictor]:
    def make(**options: object) -> LatencyPredictor:
        return load_predictor(make_release(**options))

    return make


@pytest.fixture
def predictor(make_predictor: Callable[..., LatencyPredictor]) -> LatencyPredictor:
    return make_predictor()


def kernel(op: str, phase: Phase = "forward", dtype: str = "fp32", **dims: int) -> Kernel:
    """A kernel of the vocabulary with the costs that its dimensions imply."""
    cost = kernel_cost(op, dims, dtype)
    return Kernel(
        op=op, phase=phase, dims=dims, dtype=dtype, flops=float(cost.flops),
        read_bytes=float(cost.read_bytes), write_bytes=float(cost.write_bytes), name=op,
        launches=launches(op, dims), matmul_flops=float(cost.matmul_flops),
    )  # fmt: skip


@pytest.fixture
def make_kernel() -> Callable[..., Kernel]:
    return kernel


@pytest.fixture
def chain() -> Callable[..., KernelGraph]:
    """Make a graph of kernels in stream order, each feeding the next (or `edges`)."""

    def make(
        kernels: Sequence[Kernel],
        *,
        edges: Sequence[tuple[int, int]] | None = None,
        host_ops: Mapping[str, int] | None = None,
        dtype: str = "fp32",
    ) -> KernelGraph:
        training = any(k.phase != "forward" for k in kernels)
        linked = [(i, i + 1) for i in range(len(kernels) - 1)] if edges is None else list(edges)
        calls: dict[str, int] = {}
        for k in kernels:
            calls[k.phase] = calls.get(k.phase, 0) + k.launches
        return KernelGraph(
            workload=Workload(
                name="by hand", mode="train" if training else "infer", parameters=0,
                trainable_parameters=0, parameters_bytes=0, buffers_bytes=0, inputs_bytes=0,
                batch=None, tokens=None, dtype=dtype,
            ),
            kernels=tuple(kernels),
            edges=tuple(linked),
            edge_bytes=tuple(4.0 for _ in linked),
            host_ops=calls if host_ops is None else dict(host_ops),
        )  # fmt: skip

    return make
