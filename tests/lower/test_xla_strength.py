"""Products with a vector become multiplications and sums that fuse with their neighbours."""

from __future__ import annotations

import pytest

import predictor
from predictor.lower.xla import lower_xla
from predictor.lower.xla_backends import CPU, GPU, tpu

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402


def _lowered(shape_a, shape_b, backend, function=jnp.dot):
    a, b = (jax.ShapeDtypeStruct(s, jnp.float32) for s in (shape_a, shape_b))
    return lower_xla(predictor.capture(jax.jit(function), a, b), backend)


@pytest.mark.parametrize("backend", [GPU, tpu(128)], ids=["gpu", "tpu"])
def test_a_matrix_times_a_vector_is_a_sum_of_products(backend):
    graph = _lowered((288, 768), (768,), backend)
    (kernel,) = graph.kernels
    assert kernel.op != "matmul"
    assert kernel.read_bytes >= 4 * (288 * 768 + 768)  # the matrix is read once
    assert kernel.read_bytes < 1.3 * 4 * 288 * 768


def test_what_follows_is_fused_with_it():
    graph = _lowered((288, 768), (768,), GPU, lambda a, b: jnp.tanh(a @ b))
    assert len(graph.kernels) == 1


@pytest.mark.parametrize(
    ("shapes", "backend"),
    [
        (((288, 768), (768, 64)), GPU),  # a product of matrices
        (((288, 768), (768,)), CPU),  # a library call there
        (((8192, 8192), (8192,)), GPU),  # large ones stay products on GPUs
    ],
)
def test_other_products_stay(shapes, backend):
    (kernel,) = _lowered(*shapes, backend).kernels
    assert kernel.op in ("matmul", "linear", "bmm")


def test_an_outer_product_is_a_multiplication():
    (kernel,) = _lowered((512, 1), (1, 512), GPU).kernels
    assert kernel.op != "matmul"
    assert kernel.write_bytes == 4 * 512 * 512
