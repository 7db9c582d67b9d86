"""Products with a vector written out, and short sums in loops: counted by hand."""

from __future__ import annotations

import pytest

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

from predictor.lower.xla import lower_xla  # noqa: E402
from predictor.lower.xla_backends import CPU, GPU, tpu  # noqa: E402
from predictor.program import capture  # noqa: E402


def kernels(run, *shapes, backend=GPU):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return lower_xla(capture(jax.jit(run), *arguments), backend).kernels


def product(a, b):
    return a @ b


@pytest.mark.parametrize("backend", [GPU, tpu(256)], ids=["gpu", "tpu"])
@pytest.mark.parametrize("shapes", [((512, 256), (256,)), ((256,), (256, 512))])
def test_a_matrix_times_a_vector_is_a_sum_of_rows(backend, shapes):
    (kernel,) = kernels(product, *shapes, backend=backend)
    assert kernel.op == "reduction"
    assert kernel.dims == {"rows": 512, "cols": 256}
    assert kernel.matmul_flops == 2 * 512 * 256


def test_what_stands_around_it_is_in_the_same_kernel():
    (kernel,) = kernels(lambda w, x, y: y + w @ (2 * x), (512, 256), (256,), (512,))
    assert kernel.read_bytes == 4 * (512 * 256 + 256 + 512)
    assert kernel.write_bytes == 4 * 512


def test_a_product_of_vectors_without_a_sum_multiplies_elements():
    (kernel,) = kernels(jnp.outer, (300,), (200,))
    assert kernel.op == "mul"
    assert kernel.write_bytes == 4 * 300 * 200


def test_on_a_gpu_a_large_one_stays_a_product():
    (large,) = kernels(product, (10_000, 2_000), (2_000,))
    assert large.op == "matmul"
    (on_a_tpu,) = kernels(product, (10_000, 2_000), (2_000,), backend=tpu(256))
    assert on_a_tpu.op == "reduction"


@pytest.mark.parametrize(
    ("shapes", "backend"), [(((64, 32), (32, 16)), GPU), (((512, 256), (256,)), CPU)]
)
def test_others_stay_products(shapes, backend):
    (kernel,) = kernels(product, *shapes, backend=backend)
    assert kernel.op == "matmul"


def test_on_a_gpu_sums_of_few_elements_are_part_of_a_loop():
    def run(x):
        return jnp.concatenate([x.sum(1), x.max(1)])

    assert len(kernels(run, (64, 16))) == 1
    assert len(kernels(run, (64, 512))) > 1


def test_on_a_gpu_products_that_share_a_vector_are_one_kernel():
    def run(x, *weights):
        return [w @ x for w in weights]

    assert len(kernels(run, (288,), *[(288, 288)] * 3)) == 1
    assert len(kernels(run, (288,), *[(288, 288)] * 9)) == 2  # eight sums a kernel at most
