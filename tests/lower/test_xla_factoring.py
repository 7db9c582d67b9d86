"""Factorisations of matrices: FLOPs of the textbook, panels as kernels, on both platforms."""

import pytest

pytest.importorskip("jax", reason="JAX programs need the jax extra")

import jax
import jax.numpy as jnp

import predictor
from predictor.lower.xla import lower_xla
from predictor.lower.xla_backends import GPU, tpu

N = 256
MATRICES = jax.ShapeDtypeStruct((4, N, N), jnp.float32)


@pytest.mark.parametrize(("platform", "backend"), [("cuda", GPU), ("tpu", tpu())])
@pytest.mark.parametrize(
    ("run", "flops"),
    [
        (lambda a: jax.lax.linalg.cholesky(a, symmetrize_input=False), N**3 / 3),
        (lambda a: jax.lax.linalg.lu(a)[0], 2 * N**3 / 3),
        (lambda a: jnp.linalg.qr(a, mode="raw")[0], 4 * N**3 / 3),
        (lambda a: jax.lax.linalg.triangular_solve(a, a), N**3),
    ],
    ids=["cholesky", "lu", "qr", "triangular"],
)
def test_a_factorisation_counts_the_work_of_the_textbook(run, flops, platform, backend):
    graph = predictor.capture(jax.jit(run), MATRICES, platform=platform)
    known = [k for k in lower_xla(graph, backend).kernels if k.op == "opaque"]
    (kernel,) = known
    assert kernel.flops == pytest.approx(4 * flops)
    assert kernel.launches == 3 * N / 32


def test_a_solve_of_several_systems_counts_its_right_hand_sides():
    sides = jax.ShapeDtypeStruct((N, 10), jnp.float32)
    whole = jax.ShapeDtypeStruct((N, N), jnp.float32)
    solve = jax.jit(lambda a, b: jax.lax.linalg.triangular_solve(a, b, left_side=True))
    kernels = lower_xla(predictor.capture(solve, whole, sides)).kernels
    assert sum(k.flops for k in kernels if k.op == "opaque") == N * N * 10


def test_inverses_need_no_opaque_kernels_allowed():
    found = predictor.estimate(jax.jit(jnp.linalg.inv), MATRICES, device="nvidia-a100-sxm-80gb")
    assert any("opaque" in warning for warning in found.warnings)
    assert found.step.lower_us < found.step.latency_us < found.step.upper_us
