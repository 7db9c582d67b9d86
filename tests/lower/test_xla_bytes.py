"""Traffic of fused kernels against what XLA's CPU backend counts on its compiled program."""

import statistics

import pytest

pytest.importorskip("jax", reason="JAX programs need the jax extra")
pytest.importorskip("optax", reason="training steps in JAX need optax")

from jax_programs import FUSED, PROGRAMS

import predictor
from predictor.cost.memory import memory_report
from predictor.lower.xla import lower_xla
from predictor.lower.xla_backends import CPU, GPU, tpu


def _traffic(kernels):
    """Bytes of one run of every kernel: the body of a loop once, as XLA counts."""
    return sum(kernel.bytes for kernel in kernels)


def test_fused_bytes_and_memory_are_those_of_the_compiler():
    errors, memory = {}, {}
    for name in FUSED:
        jitted, arguments = PROGRAMS[name]()
        compiled = jitted.lower(*arguments).compile()
        graph = predictor.capture(jitted, *arguments, platform="cpu")
        traffic = _traffic(lower_xla(graph, CPU).kernels)
        errors[name] = abs(traffic / compiled.cost_analysis()["bytes accessed"] - 1)
        peak = memory_report(lower_xla(graph, CPU)).peak_bytes
        memory[name] = abs(peak / _allocated(compiled.memory_analysis()) - 1)
    assert len(errors) >= 10
    assert max(errors.values()) <= 0.25, errors
    assert statistics.median(errors.values()) <= 0.10, errors
    assert max(memory.values()) <= 0.30, memory
    assert statistics.median(memory.values()) <= 0.10, memory


def _allocated(analysis):
    """Bytes of arguments, results and temporaries."""
    return (
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        + analysis.temp_size_in_bytes
    )


@pytest.mark.parametrize("name", ["mlp", "transformer", "cnn_sgd", "transformer_adamw"])
def test_accelerators_move_no_more_than_the_cpu(name):
    """A GPU and a TPU fuse what a CPU fuses, and more; tiles of a TPU are not counted here."""
    jitted, arguments = PROGRAMS[name]()
    graph = predictor.capture(jitted, *arguments)
    cpu, gpu = (lower_xla(graph, backend) for backend in (CPU, GPU))
    assert len(gpu.kernels) < len(cpu.kernels) < len(graph.nodes)
    assert _traffic(gpu.kernels) <= _traffic(cpu.kernels)


def test_matmul_flops_do_not_depend_on_the_backend():
    jitted, arguments = PROGRAMS["transformer_adamw"]()
    graph = predictor.capture(jitted, *arguments)
    found = {
        sum(k.repeats * k.matmul_flops for k in lower_xla(graph, backend).kernels)
        for backend in (CPU, GPU, tpu(128), tpu(256))
    }
    assert len(found) == 1


def test_sides_are_filled_up_to_the_systolic_array():
    """784 x 1024, 1024 x 1024 and 1024 x 10: n of 10 becomes 128 or 256, k of 784 896 or 1024."""
    jitted, arguments = PROGRAMS["mlp"]()
    graph = predictor.capture(jitted, *arguments)

    def work(side):
        kernels = lower_xla(graph, tpu(side)).kernels
        assert {k.dtype for k in kernels} == {"bf16"}  # one pass at default precision
        return [k.flops for k in kernels]

    rows = 256
    for side, k, n in ((128, 896, 128), (256, 1024, 256)):
        first, second, third = work(side)
        assert first == pytest.approx(2 * rows * k * 1024, rel=0.01)
        assert second == pytest.approx(2 * rows * 1024 * 1024, rel=0.01)
        assert third == pytest.approx(2 * rows * 1024 * n, rel=0.01)
