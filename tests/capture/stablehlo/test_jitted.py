"""A jitted function and its text, estimated on a GPU and a TPU."""

from pathlib import Path

import pytest

import predictor
from predictor.errors import CaptureError, CostRuleError
from predictor.graph.serialize import load_graph, save_graph
from predictor.lower.eager import lower_eager
from predictor.lower.xla import lower_xla
from predictor.lower.xla_backends import CPU, tpu

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


def test_a_file_may_return_a_jitted_function(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import jax, jax.numpy as jnp\n"
        "def program(batch=8):\n"
        "    x = jax.ShapeDtypeStruct((batch, 16), jnp.float32)\n"
        "    return jax.jit(lambda w, x: x @ w), (jax.ShapeDtypeStruct((16, 4), jnp.float32), x)\n"
    )
    graph = predictor.capture(f"{file}:program", batch=32)
    assert [n.outputs[0].shape for n in graph.nodes] == [(32, 4)]


def test_a_captured_program_survives_its_file(tmp_path: Path):
    graph = predictor.capture(jax.jit(_mlp), *_arguments())
    save_graph(graph, tmp_path / "graph.json")
    assert load_graph(tmp_path / "graph.json") == graph


def test_keyword_arguments_and_pytrees():
    params, x = _arguments()
    jitted = jax.jit(_mlp)
    held = predictor.capture(jitted, params, x)
    assert predictor.capture(jitted, {"params": params, "x": x}).nodes == held.nodes
    assert predictor.capture(jitted, (params, x)).nodes == held.nodes
    alone = predictor.capture(jax.jit(lambda p: p["w1"] + 1), params)
    assert [n.op for n in alone.nodes][-1] == "stablehlo.add"


def test_random_numbers_sorting_and_sums_have_kernels():
    def run(key, x):
        y = x + jax.random.normal(key, x.shape)
        return jnp.sort(y), jnp.cumsum(y, -1), jax.lax.top_k(y, 4), jnp.fft.fft(y)

    key = jax.eval_shape(lambda: jax.random.key(0))
    for platform, device in (("cpu", None), ("tpu", 128)):
        graph = predictor.capture(
            jax.jit(run), key, jax.ShapeDtypeStruct((64, 256), jnp.float32), platform=platform
        )
        ops = {k.op for k in lower_xla(graph, CPU if device is None else tpu(device)).kernels}
        assert {"sort", "scan", "fft"} <= ops


def test_a_lowered_program_is_not_taken_for_eager_calls():
    graph = predictor.capture(jax.jit(_mlp), *_arguments())
    with pytest.raises(CostRuleError, match="which no framework runs call by call"):
        lower_eager(graph, allow_opaque=True)


def test_a_mapped_function_is_taken_for_the_devices_at_hand():
    mapped = jax.pmap(lambda x: x @ x.T, devices=jax.devices()[:1])
    graph = predictor.capture(mapped, jax.ShapeDtypeStruct((1, 32, 16), jnp.float32))
    assert lower_xla(graph).kernels[0].matmul_flops == 2 * 32 * 32 * 16


SPEC = jax.ShapeDtypeStruct((4, 8), jnp.float32)


@pytest.mark.parametrize(
    ("function", "inputs", "shapes"),
    [
        (lambda pair: pair[0] + pair[1], [SPEC, SPEC], [(4, 8)]),
        (lambda pair: pair[0] + pair[1], (SPEC, SPEC), [(4, 8)]),
        (lambda pair, more=None: pair[0] + pair[1], [SPEC, SPEC], [(4, 8)]),
        (lambda a, b: a + b, [SPEC, SPEC], [(4, 8)]),
        (lambda a, b: a + b, (SPEC, SPEC), [(4, 8)]),
        (lambda a, b=None: a + b, (SPEC, SPEC), [(4, 8)]),
        (lambda *all_: sum(all_[1:], all_[0]), (SPEC, SPEC, SPEC), [(4, 8), (4, 8)]),
    ],
)
def test_lists_are_one_argument_where_one_is_taken_and_tuples_are_all(function, inputs, shapes):
    graph = predictor.capture(jax.jit(function), inputs)
    assert [n.outputs[0].shape for n in graph.nodes] == shapes


def test_a_call_back_into_python_is_refused_with_what_to_do():
    def printing(x):
        jax.debug.print("{}", x.sum())
        return x + 1

    with pytest.raises(CaptureError, match=r"call back into Python.*leave it out"):
        predictor.capture(jax.jit(printing), SPEC, platform="tpu")
