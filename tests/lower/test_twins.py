"""The same program in JAX and in PyTorch gets the same answer under the same backend."""

from dataclasses import replace

import pytest

pytest.importorskip("jax", reason="JAX programs need the jax extra")

from jax_twins import TWINS

import predictor
from predictor.features.table import repeats_of
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Software
from predictor.lower.xla import lower_xla
from predictor.lower.xla_backends import backend_of

DEVICES = ("nvidia-a100-sxm-80gb", "nvidia-h100-sxm-80gb", "google-tpu-v5e")
XLA = Software(
    framework="jax", mode="compiled", matmul_tf32=True, memory_format="channels_last"
)  # fmt: skip


@pytest.mark.parametrize("name", TWINS)
def test_same_program_same_answer(name):
    graphs = [make() for make in TWINS[name]]
    network = predictor.load()
    for device in map(resolve_device, DEVICES):
        lowered = [lower_xla(graph, backend_of(device)) for graph in graphs]
        jax_flops, torch_flops = (
            sum(k.repeats * k.matmul_flops for k in g.kernels) for g in lowered
        )
        assert jax_flops == torch_flops > 0
        times = [repeats_of(g) @ network.predict(g, device, XLA).kernel_us for g in lowered]
        assert times[0] == pytest.approx(times[1], rel=0.15), device.id


def test_pytorch_under_xla_is_asked_for_by_its_framework():
    import torch

    x = torch.empty(64, 256, device="meta")
    module = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU())
    eager = predictor.estimate(module, x, device=DEVICES[0])
    xla = predictor.estimate(
        module, x, device=DEVICES[0], software=replace(XLA, framework="torch_xla")
    )
    assert (eager.workload.kernels, xla.workload.kernels) == (2, 1)  # the activation joins
    assert xla.workload.matmul_flops == eager.workload.matmul_flops
