"""A jitted function and its text, estimated on a GPU and a TPU."""

from pathlib import Path

import pytest

import predictor

jax = pytest.importorskip("jax", reason="JAX programs need the jax extra")
jnp = jax.numpy


def _mlp(params, x):
    h = jax.nn.relu(x @ params["w1"] + params["b1"])
    return h @ params["w2"]


def _arguments():
    def spec(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    return {"w1": spec(64, 128), "b1": spec(128), "w2": spec(128, 8)}, spec(32, 64)


@pytest.mark.parametrize("device", ["nvidia-h100-sxm-80gb", "google-tpu-v5e"])
def test_a_jitted_function_is_estimated_without_the_device(device):
    found = predictor.estimate(jax.jit(_mlp), *_arguments(), device=device)
    assert found.workload.matmul_flops == 2 * 32 * (64 * 128 + 128 * 8)
    assert found.workload.parameters == 64 * 128 + 128 + 128 * 8
    assert found.workload.batch == 32
    assert found.step.lower_us <= found.step.latency_us <= found.step.upper_us
    assert found.workload.kernels == 2  # bias and activation end in the first product


def test_text_gives_what_the_function_gives(tmp_path: Path):
    lowered = jax.jit(_mlp).lower(*_arguments())
    file = tmp_path / "mlp.mlir"
    file.write_text(lowered.as_text())
    text = predictor.capture(str(file))
    held = predictor.capture(jax.jit(_mlp), *_arguments())
    assert [n.op for n in text.nodes] == [n.op for n in held.nodes]
    assert text.workload.parameters == held.workload.parameters
