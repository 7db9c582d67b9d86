"""Tiles and systolic arrays of TPUs, and which backend compiles for a device."""

from dataclasses import replace

import pytest
import torch

import predictor
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Software
from predictor.lower.xla import lower_xla
from predictor.lower.xla_backends import CPU, GPU, JAX, backend_of, tpu


@pytest.mark.parametrize(
    ("device", "name", "side"),
    [
        ("nvidia-a100-sxm-80gb", "gpu", None), ("google-tpu-v3-core", "tpu", 128),
        ("google-tpu-v5e", "tpu", 128), ("google-tpu-v6e", "tpu", 256),
        ("google-tpu7x-device", "tpu", 256),
    ],
)  # fmt: skip
def test_the_backend_of_a_device(device, name, side):
    found = backend_of(resolve_device(device))
    assert (found.name, found.matrix_side) == (name, side)


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [
        ((256, 1024), "fp32", 256 * 1024 * 4),  # whole tiles
        ((256, 1000), "fp32", 1000 * 256 * 4),  # the other way round, tiles are whole
        ((10, 100), "fp32", 16 * 128 * 4),  # 8 rows of 128 lanes
        ((10, 100), "bf16", 16 * 128 * 2),  # 16 rows
        ((4, 3, 128), "fp32", 3 * 8 * 128 * 4),  # 4 fill half a tile, 3 would fill less
        ((1000,), "fp32", 1024 * 4),
        ((), "fp32", 4),
    ],
)
def test_tensors_fill_tiles(shape, dtype, size):
    assert tpu(128).stored_bytes(shape, dtype) == pytest.approx(size)


def test_other_backends_have_no_tiles():
    for backend in (CPU, GPU):
        assert backend.stored_bytes((10, 100), "fp32") == 4000
        assert backend.padded(10) == 10
    assert tpu(256).padded(300) == 512


def _product(*, precision=None, convolution=False, dtype="float32"):
    """A jitted product or convolution of that precision, captured."""
    jax = pytest.importorskip("jax", reason="JAX programs need the jax extra")

    def run(x, w):
        if convolution:
            return jax.lax.conv(x, w, (1, 1), "SAME", precision=precision)
        return jax.lax.dot(x, w, precision=precision)

    shapes = ((8, 64, 32, 32), (64, 64, 3, 3)) if convolution else ((1024, 1024), (1024, 1024))
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return predictor.capture(jax.jit(run), *arguments)


def _only(graph, device, **software):
    backend = backend_of(resolve_device(device), replace(JAX, **software))
    (kernel,) = lower_xla(graph, backend).kernels
    return kernel


@pytest.mark.parametrize("convolution", [False, True])
@pytest.mark.parametrize(
    ("device", "precision", "dtype", "times"),
    [
        ("nvidia-a100-sxm-80gb", None, "tf32", 1),
        ("nvidia-a100-sxm-80gb", "high", "tf32", 1),
        ("nvidia-a100-sxm-80gb", "highest", "fp32", 1),
        ("nvidia-v100-sxm2-32gb", None, "fp32", 1),  # it has no TF32
        ("google-tpu-v5e", None, "bf16", 1),
        ("google-tpu-v5e", "high", "bf16", 3),
        ("google-tpu-v5e", "highest", "bf16", 6),
        ("intel-xeon-gold-6240", "highest", "fp32", 1),
    ],
)
def test_the_precision_of_a_product_reaches_its_kernel(
    device, precision, dtype, times, convolution
):
    graph = _product(precision=precision, convolution=convolution)
    kernel = _only(graph, device)
    one = _only(_product(convolution=convolution, dtype="bfloat16"), device)
    assert (kernel.dtype, kernel.flops) == (dtype, times * one.flops)
    assert kernel.matmul_flops == one.matmul_flops


@pytest.mark.parametrize(
    ("device", "algorithm", "dtype", "times"),
    [
        ("nvidia-h100-sxm-80gb", "BF16_BF16_F32_X3", "bf16", 3),
        ("nvidia-h100-sxm-80gb", "TF32_TF32_F32_X3", "tf32", 3),
        ("nvidia-h100-sxm-80gb", "F32_F32_F32", "fp32", 1),
        ("google-tpu-v5e", "BF16_BF16_F32_X6", "bf16", 6),
        ("google-tpu-v5e", "F32_F32_F32", "bf16", 6),
    ],
)
def test_a_product_may_name_its_algorithm(device, algorithm, dtype, times):
    kernel = _only(_product(precision=algorithm), device)
    assert (kernel.dtype, kernel.flops) == (dtype, times * kernel.matmul_flops)


def test_tf32_can_be_switched_off_for_all():
    assert _only(_product(), "nvidia-a100-sxm-80gb", matmul_tf32=False).dtype == "fp32"
    convolution = _product(convolution=True)
    assert _only(convolution, "nvidia-a100-sxm-80gb", conv_tf32=False).dtype == "fp32"


def test_highest_precision_takes_longer_where_tf32_is_faster():
    found = {
        (device, p): predictor.estimate(_product(precision=p), device=device).latency_us
        for device in ("nvidia-a100-sxm-80gb", "nvidia-v100-sxm2-32gb") for p in (None, "highest")
    }  # fmt: skip
    assert found["nvidia-a100-sxm-80gb", "highest"] > 3 * found["nvidia-a100-sxm-80gb", None]
    assert found["nvidia-v100-sxm2-32gb", "highest"] == found["nvidia-v100-sxm2-32gb", None]


def test_a_pytorch_program_on_a_tpu_is_compiled_by_xla():
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.LayerNorm(512))
    x = torch.empty(64, 256)  # fp32, which TPUs multiply as bf16
    alone = predictor.estimate(model, x, device="google-tpu-v5e")
    assert alone.software.framework == "torch_xla"
    asked = Software(framework="torch_xla", mode="compiled")
    same = predictor.estimate(model, x, device="google-tpu-v5e", software=asked)
    assert alone.step.latency_us == same.step.latency_us
    assert all(name.startswith("xla.") for name in alone.kernels["name"])
