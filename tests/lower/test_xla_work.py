"""Work that is no product: integers, scalars of reductions, sorts, the vector lanes of TPUs."""

import pytest

pytest.importorskip("jax", reason="JAX programs need the jax extra")

import jax
import jax.numpy as jnp

import predictor
from predictor.lower.xla import lower_xla
from predictor.lower.xla_backends import GPU, tpu

ROWS = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
INTEGERS = jax.ShapeDtypeStruct((1024, 1024), jnp.int32)
BOTH = pytest.mark.parametrize("backend", [GPU, tpu()], ids=["gpu", "tpu"])


def _kernels(run, *args, backend=GPU):
    return lower_xla(predictor.capture(jax.jit(run), *args), backend).kernels


@BOTH
@pytest.mark.parametrize(
    ("run", "rows"),
    [
        (lambda x: jnp.isfinite(x).all(), ROWS),
        (lambda x: jnp.count_nonzero(x), ROWS),
        (lambda x: x.sum(), INTEGERS),
        (lambda x: (x > 0).any(), INTEGERS),
    ],
)
def test_a_reduction_to_one_integer_reads_what_it_reduces(run, rows, backend):
    (kernel,) = _kernels(run, rows, backend=backend)
    assert kernel.op == "reduction"
    assert kernel.read_bytes == 4 * 1024**2


@BOTH
def test_a_check_inside_a_step_stays(backend):
    def step(x):
        return jnp.where(jnp.isfinite(x).all(), x + 1, x)

    kernels = _kernels(step, ROWS, backend=backend)
    assert sum(k.read_bytes for k in kernels) >= 2 * 4 * 1024**2


def test_counters_beside_other_work_are_no_kernels_and_alone_they_are():
    def scan(x):
        return jax.lax.fori_loop(0, 10, lambda i, x: jnp.sin(x), x)

    assert [k.op for k in _kernels(scan, ROWS)] == ["copy", "exp"]
    alone = _kernels(lambda: jax.lax.fori_loop(0, 10, lambda i, n: n * 3 + i, jnp.int32(1)))
    assert {k.repeats for k in alone} == {10}


@BOTH
def test_integer_steps_count_as_others_do(backend):
    def mixed(x):
        for shift in range(1, 9):
            x = x ^ (x << shift)
        return x

    (kernel,) = _kernels(mixed, INTEGERS, backend=backend)
    assert kernel.flops == 16 * 1024**2


def test_the_lanes_of_a_tpu_bound_a_chain_of_transcendentals():
    def chain(steps):
        def run(x):
            for _ in range(steps):
                x = jnp.sin(x)
            return x

        return predictor.estimate(jax.jit(run), ROWS, device="google-tpu-v5e").kernels

    short, long = (chain(n) for n in (1, 100))
    assert short["bound"].tolist() == ["memory"]
    assert long["bound"].tolist() == ["compute"]
    # 10 steps an element of each, on 6.144e12 a second
    assert long["floor_us"].sum() == pytest.approx(100 * 10 * 1024**2 / 6.144e12 * 1e6, rel=0.01)


def _sorted(*shape, backend, run=jnp.sort):
    rows = jax.ShapeDtypeStruct(shape, jnp.float32)
    return next(k for k in _kernels(run, rows, backend=backend) if k.op == "sort")


def test_a_sort_on_a_tpu_is_a_network_on_its_lanes():
    kernel = _sorted(1 << 20, backend=tpu())
    assert kernel.flops == (1 << 20) * 20 * 21 / 2 * 2
    assert kernel.bytes == 2 * 4 * (1 << 20)
    pairs = _sorted(1 << 20, backend=tpu(), run=jnp.argsort)
    assert pairs.flops == 1.5 * kernel.flops


@pytest.mark.parametrize(
    ("shape", "passes"),
    [((1 << 20,), 4.5), ((64, 2048), 1.0), ((64, 8192), 1.0 + 2 * 5 / 2)],
)
def test_a_sort_on_a_gpu_passes_over_memory_as_often_as_it_does(shape, passes):
    kernel = _sorted(*shape, backend=GPU)
    numel = 1
    for size in shape:
        numel *= size
    assert kernel.bytes == passes * 2 * 4 * numel


@BOTH
@pytest.mark.parametrize("run", [lambda t, i: t[i], lambda t, i: jnp.take(t, i, axis=0)])
def test_rows_that_are_looked_up_are_a_gather(run, backend):
    table = jax.ShapeDtypeStruct((5000, 256), jnp.float32)
    places = jax.ShapeDtypeStruct((8, 64), jnp.int32)
    (kernel,) = _kernels(run, table, places, backend=backend)
    assert (kernel.op, kernel.dims) == ("gather", {"rows": 512, "cols": 256})
