"""Loops, calls, branches, custom calls and collectives in StableHLO text."""

import math
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="StableHLO is read with the jax extra")

import jax
import jax.numpy as jnp

import predictor
from predictor.errors import CaptureError, CostRuleError
from predictor.lower.xla import lower_xla

DOT = "contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>"
PRODUCT = 2 * 8 * 8 * 8


def _loop(condition: str, body: str = "stablehlo.add %i, %one : tensor<i32>", start: str = "0"):
    return f"""func.func public @main(%x: tensor<8x8xf32>, %n: tensor<i32>) -> tensor<8x8xf32> {{
    %start = stablehlo.constant dense<{start}> : tensor<i32>
    %out:2 = stablehlo.while(%i = %start, %y = %x) : tensor<i32>, tensor<8x8xf32>
      cond {{
        %bound = stablehlo.constant dense<7> : tensor<i32>
        %go = {condition} : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %go : tensor<i1>
      }} do {{
        %one = stablehlo.constant dense<1> : tensor<i32>
        %two = stablehlo.constant dense<2> : tensor<i32>
        %j = {body}
        %z = stablehlo.dot_general %y, %y, {DOT}
        stablehlo.return %j, %z : tensor<i32>, tensor<8x8xf32>
      }}
    return %out#1 : tensor<8x8xf32>
  }}"""


def _graph(tmp_path: Path, text: str, **options):
    file = tmp_path / "program.mlir"
    file.write_text(text)
    return predictor.capture(str(file), **options)


def _products(graph) -> float:
    return sum(k.repeats * k.matmul_flops for k in lower_xla(graph).kernels) / PRODUCT


@pytest.mark.parametrize(
    ("condition", "body", "start", "count"),
    [
        ("stablehlo.compare LT, %i, %bound", "stablehlo.add %i, %one : tensor<i32>", "0", 7),
        ("stablehlo.compare LE, %i, %bound", "stablehlo.add %i, %one : tensor<i32>", "0", 8),
        ("stablehlo.compare GT, %bound, %i", "stablehlo.add %two, %i : tensor<i32>", "0", 4),
        ("stablehlo.compare NE, %i, %bound", "stablehlo.add %i, %one : tensor<i32>", "3", 4),
        ("stablehlo.compare GE, %i, %bound", "stablehlo.subtract %i, %one : tensor<i32>", "9", 3),
        ("stablehlo.compare GT, %i, %bound", "stablehlo.subtract %i, %two : tensor<i32>", "12", 3),
        ("stablehlo.compare LT, %i, %bound", "stablehlo.add %i, %one : tensor<i32>", "9", 0),
    ],
)
def test_a_counted_loop_runs_as_often_as_it_counts(tmp_path, condition, body, start, count):
    assert _products(_graph(tmp_path, _loop(condition, body, start))) == count


@pytest.mark.parametrize(
    ("condition", "body", "start"),
    [
        ("stablehlo.compare NE, %i, %bound", "stablehlo.add %i, %two : tensor<i32>", "0"),
        ("stablehlo.compare NE, %i, %bound", "stablehlo.add %i, %one : tensor<i32>", "9"),
        ("stablehlo.compare LT, %i, %bound", "stablehlo.subtract %i, %one : tensor<i32>", "0"),
        ("stablehlo.compare GE, %i, %bound", "stablehlo.add %i, %one : tensor<i32>", "7"),
    ],
)
def test_a_loop_that_never_ends_is_refused(tmp_path, condition, body, start):
    with pytest.raises(CaptureError, match="never ends"):
        _graph(tmp_path, _loop(condition, body, start))


def test_an_uncounted_loop_asks_and_takes_the_answer(tmp_path):
    text = _loop("stablehlo.compare LT, %i, %n")
    with pytest.raises(CaptureError, match=r"does not fix how often.*trips=N"):
        _graph(tmp_path, text)
    assert _products(_graph(tmp_path, text, dims={"trips": 5})) == 5
    with pytest.raises(CaptureError, match="no free size batch"):
        _graph(tmp_path, text, dims={"batch": 5})


def test_scan_and_fori_loop_count_their_iterations():
    def run(w, xs):
        def cell(h, x):
            return jnp.tanh(h @ w + x), h

        h = jax.lax.fori_loop(0, 3, lambda i, h: h @ w, xs[0])
        return jax.lax.scan(cell, h, xs)

    w = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    graph = predictor.capture(jax.jit(run), w, jax.ShapeDtypeStruct((5, 8, 8), jnp.float32))
    assert _products(graph) == 3 + 5


def test_loops_in_loops_multiply():
    def run(x):
        def outer(x, _):
            return jax.lax.scan(lambda y, _: (y @ y, None), x, None, length=3)[0] @ x, None

        return jax.lax.scan(outer, x, None, length=4)[0]

    graph = predictor.capture(jax.jit(run), jax.ShapeDtypeStruct((8, 8), jnp.float32))
    assert _products(graph) == 4 * (3 + 1)
    kernels = [(k.op, k.repeats) for k in lower_xla(graph).kernels]
    # counters launch nothing; what a loop changes and is read besides, it changes in a copy
    assert kernels == [("copy", 1), ("copy", 4), ("matmul", 12), ("matmul", 4)]


def _tanhs(*lengths: int):
    """A scan inside a scan for each length, the innermost a tanh alone."""
    step = jnp.tanh
    for length in reversed(lengths):
        step = partial(_repeated, step, length)
    return jax.jit(step, donate_argnums=0)


def _repeated(step, length, x):
    return jax.lax.scan(lambda y, _: (step(y), None), x, None, length=length)[0]


@pytest.mark.parametrize("lengths", [(3, 5), (1, 5), (5, 1), (2, 3, 4), (1, 1, 7), (100, 100)])
def test_a_loop_with_nothing_but_a_loop_inside_multiplies_once(lengths):
    x = jax.ShapeDtypeStruct((64, 1024), jnp.bfloat16)
    roof = {"device": "google-tpu-v5e", "checkpoint": "base-v2"}  # a sum of kernels alone
    found = predictor.estimate(_tanhs(*lengths), x, **roof)
    one = predictor.estimate(_tanhs(1), x, **roof)
    runs = math.prod(lengths)
    assert found.workload.kernels == runs * one.workload.kernels == runs
    assert found.workload.bytes == runs * one.workload.bytes
    assert found.latency_us == pytest.approx(runs * one.latency_us)
    assert found.step.upper_us == pytest.approx(runs * one.step.upper_us)
    assert found.memory.peak_bytes == one.memory.peak_bytes
    assert [(g.name, g.count, g.share) for g in found.groups] == [("xla.tanh", runs, 1.0)]
    assert found.kernels["repeats"].tolist() == [runs]
    assert found.coverage.roofline == pytest.approx(1.0)


def test_a_scan_in_a_function_that_a_scan_calls_multiplies():
    inner = jax.jit(lambda x: jax.lax.scan(lambda y, _: (y @ y, None), x, None, length=3)[0])

    def run(x):
        return jax.lax.scan(lambda y, _: (inner(inner(y)), None), x, None, length=4)[0]

    graph = predictor.capture(jax.jit(run), jax.ShapeDtypeStruct((8, 8), jnp.float32))
    assert _products(graph) == 4 * 2 * 3


def test_flops_of_the_report_and_of_products_count_every_run():
    def run(x):
        return _repeated(partial(_repeated, lambda y: y @ y, 5), 3, x)

    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    found = predictor.estimate(jax.jit(run), x, device="nvidia-t4")
    assert found.workload.matmul_flops == 15 * PRODUCT
    counters = 15 + 3  # each loop adds 1 a run, as XLA counts it
    assert found.workload.flops == pytest.approx(15 * PRODUCT, abs=4 * counters)


def test_uncounted_loops_in_counted_ones_take_the_trips_that_are_given(tmp_path):
    def run(n, x):
        return _repeated(lambda y: jax.lax.fori_loop(0, n, lambda _, z: z @ z, y), 4, x)

    args = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((8, 8), jnp.float32)
    graph = predictor.capture(jax.jit(run), *args, dims={"trips": 6})
    assert _products(graph) == 4 * 6
    file = tmp_path / "loops.mlir"
    file.write_text(jax.jit(run).lower(*args).as_text())
    assert _products(predictor.capture(str(file), dims={"trips": 6})) == 4 * 6


def test_a_bound_that_an_outer_loop_carries_is_followed():
    def run(x):
        def outer(carry):
            i, n, x = carry
            done = jax.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] @ c[1]), (0, x))
            return i + 1, n, done[1]

        return jax.lax.while_loop(lambda c: c[0] < 3, outer, (0, 5, x))[2]

    graph = predictor.capture(jax.jit(run), jax.ShapeDtypeStruct((8, 8), jnp.float32))
    assert _products(graph) == 3 * 5


def test_loops_that_would_run_for_years_are_refused():
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    with pytest.raises(CaptureError, match=r"run their body 1e\+18 times"):
        predictor.capture(_tanhs(10**9, 10**9), x)


def test_calls_are_opened_and_dead_code_is_not(tmp_path):
    text = f"""module {{
  func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {{
    %a = call @twice(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %dead = call @twice(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %a : tensor<8x8xf32>
  }}
  func.func private @twice(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {{
    %a = stablehlo.dot_general %x, %x, {DOT}
    %b = stablehlo.dot_general %a, %x, {DOT}
    return %b : tensor<8x8xf32>
  }}
}}"""
    assert _products(_graph(tmp_path, text)) == 2


def test_a_branch_is_taken_by_its_length_and_told():
    def run(go, x):
        return jax.lax.cond(go, lambda x: x @ x @ x, lambda x: x + 1, x)

    args = jax.ShapeDtypeStruct((), jnp.bool_), jax.ShapeDtypeStruct((8, 8), jnp.float32)
    graph = predictor.capture(jax.jit(run), *args)
    assert _products(graph) == 2
    assert "branches on a value" in graph.workload.warnings[0]


def _custom(target: str, shapes: str, result: str, config: str = "") -> str:
    names = ", ".join(f"%a{i}: {s}" for i, s in enumerate(shapes.split(", ")))
    given = ", ".join(f"%a{i}" for i in range(len(shapes.split(", "))))
    return f"""func.func public @main({names}) -> {result} {{
    %0 = stablehlo.custom_call @{target}({given}) {{backend_config = "{config}"}}
        : ({shapes}) -> {result}
    return %0 : {result}
  }}"""


def test_attention_of_a_library_is_known(tmp_path):
    heads = "tensor<2x128x4x64xbf16>"
    text = _custom("__cudnn$fmhaSoftmax", f"{heads}, {heads}, {heads}", heads, "mask_type: CAUSAL")
    (kernel,) = lower_xla(_graph(tmp_path, text)).kernels
    assert kernel.op == "attention"
    assert kernel.dims["heads"] == 4
    assert kernel.dims["causal"] == 1
    assert kernel.matmul_flops == 4 * 2 * 4 * 128 * 128 * 64


def test_an_unknown_custom_call_is_opaque_where_that_is_allowed(tmp_path):
    text = _custom("my_kernel", "tensor<64xf32>", "tensor<64xf32>")
    graph = _graph(tmp_path, text)
    with pytest.raises(CostRuleError, match="my_kernel"):
        lower_xla(graph)
    lowered = lower_xla(graph, allow_opaque=True)
    (kernel,) = lowered.kernels
    assert (kernel.op, kernel.name, kernel.bytes) == ("opaque", "xla.my_kernel", 512)
    assert "my_kernel (1)" in lowered.workload.warnings[0]


def test_collectives_count_their_ranks():
    from jax.sharding import AbstractMesh, PartitionSpec

    mesh = AbstractMesh((4, 2), ("data", "model"))

    def run(x):
        whole = jax.lax.all_gather(x, "data", tiled=True)
        part = jax.lax.psum_scatter(whole, "model", tiled=True)
        return jax.lax.ppermute(part, "data", [(i, (i + 1) % 4) for i in range(4)])

    split = PartitionSpec(("data", "model"))
    mapped = jax.shard_map(run, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    graph = predictor.capture(jax.jit(mapped), jax.ShapeDtypeStruct((64, 8), jnp.float32))
    found = {k.op: k.dims for k in lower_xla(graph).kernels}
    assert found["all_gather"] == {"numel": 32 * 8, "ranks": 4}
    assert found["reduce_scatter"] == {"numel": 32 * 8, "ranks": 2}
    assert "send_recv" in found


def test_phases_come_from_the_name_stack():
    def loss(w, x):
        return ((x @ w) ** 2).sum()

    def step(w, x):
        return w - 0.1 * jax.grad(loss)(w, x)

    w, x = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 8), (4, 8)))
    graph = predictor.capture(jax.jit(step), w, x)
    phases = [n.phase for n in graph.nodes if n.op == "stablehlo.dot_general"]
    assert phases == ["forward", "backward"]
    assert graph.nodes[-1].phase == "optimizer"
    assert graph.workload.mode == "train"
    with pytest.raises(CaptureError, match="training step"):
        predictor.capture(jax.jit(step), w, x, mode="infer")


def test_results_stay_unless_their_memory_is_donated():
    def step(w, x):
        return w + x, x * 2

    args = [jax.ShapeDtypeStruct((256, 256), jnp.float32)] * 2
    kept = {}
    for donated in ((), (0,), (0, 1)):
        graph = predictor.capture(jax.jit(step, donate_argnums=donated), *args)
        kept[donated] = sum(bool(n.attrs.get("kept")) for n in graph.nodes)
    assert kept == {(): 2, (0,): 1, (0, 1): 0}
