"""Pallas kernels by their names, masks and stated costs."""

import base64
import json

import pytest

pytest.importorskip("jax", reason="JAX programs need the jax extra")

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.gpu import attention as triton
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as splash,
)
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

import predictor
from predictor.capture.stablehlo.mosaic import mosaic_facts
from predictor.errors import CostRuleError
from predictor.lower.xla import lower_xla
from predictor.lower.xla_backends import tpu

LENGTH = 2048
HEADS = jax.ShapeDtypeStruct((2, 8, LENGTH, 128), jnp.bfloat16)
FORWARD = 4 * 2 * 8 * LENGTH * LENGTH * 128
SHAPE = {
    "batch": 2, "heads": 8, "kv_heads": 8, "q_len": LENGTH, "kv_len": LENGTH, "head_dim": 128,
}  # fmt: skip


def _flash(causal):
    return lambda q, k, v: flash_attention(q, k, v, causal=causal)


def _splash(mask):
    def run(q, k, v):
        whole = masks.MultiHeadMask([mask] * 8)
        kernel = splash.make_splash_mha(whole, head_shards=1, q_seq_shards=1)
        return jax.vmap(kernel)(q, k, v)

    return run


def _gradient(run):
    def loss(q, k, v):
        return run(q, k, v).astype(jnp.float32).sum()

    return jax.grad(loss, argnums=(0, 1, 2))


def _attention(run, platform="tpu", *args):
    graph = predictor.capture(jax.jit(run), *(args or (HEADS,) * 3), platform=platform)
    backend = [tpu()] if platform == "tpu" else []
    return [k for k in lower_xla(graph, *backend).kernels if k.op.startswith("attention")]


@pytest.mark.parametrize(
    ("run", "causal", "window"),
    [
        (_flash(causal=False), 0, None),
        (_flash(causal=True), 1, None),
        (_splash(masks.FullMask((LENGTH, LENGTH))), 0, None),
        (_splash(masks.CausalMask((LENGTH, LENGTH))), 1, None),
        (_splash(masks.LocalMask((LENGTH, LENGTH), (128, 0), 0)), 1, 256),
    ],
)
def test_forward_attention_is_forward_with_its_mask(run, causal, window):
    (kernel,) = _attention(run)
    more = {} if window is None else {"window": window}
    assert (kernel.op, kernel.dims) == ("attention", {**SHAPE, "causal": causal, **more})
    assert kernel.matmul_flops == FORWARD


@pytest.mark.parametrize("run", [_flash(causal=True), _splash(masks.CausalMask((LENGTH, LENGTH)))])
def test_the_gradient_of_attention_is_seven_products_in_two_kernels(run):
    forward, keys, queries = _attention(_gradient(run))
    assert [k.op for k in (forward, keys, queries)] == [
        "attention", "attention_backward", "attention",
    ]  # fmt: skip
    assert keys.flops + queries.flops == pytest.approx(3.5 * forward.flops)
    assert sum(k.matmul_flops for k in (forward, keys, queries)) == 3 * FORWARD


def test_triton_kernels_are_known_by_the_names_in_their_calls():
    def run(q, k, v):
        return triton.mha(q, k, v, None, causal=True)

    rows = jax.ShapeDtypeStruct((2, LENGTH, 8, 128), jnp.float16)
    kernels = _attention(_gradient(run), "cuda", rows, rows, rows)
    assert [k.op for k in kernels] == ["attention", "attention_backward"]
    assert all(k.dims["heads"] == 8 and k.dims["q_len"] == LENGTH for k in kernels)


def _add_one(x, cost):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    return pl.pallas_call(body, out_shape=jax.typeof(x), cost_estimate=cost)(x)


def test_a_kernel_that_states_its_cost_is_opaque_with_that_work():
    x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    cost = pl.CostEstimate(flops=7_000_000, bytes_accessed=3_000_000, transcendentals=0)
    stated = predictor.capture(jax.jit(lambda x: _add_one(x, cost)), x, platform="tpu")
    (kernel,) = lower_xla(stated, tpu()).kernels
    assert (kernel.op, kernel.flops, kernel.bytes) == ("opaque", 7_000_000, 3_000_000)
    silent = predictor.capture(jax.jit(lambda x: _add_one(x, None)), x, platform="tpu")
    with pytest.raises(CostRuleError, match="tpu_custom_call"):
        lower_xla(silent, tpu())


def _call(**facts):
    return json.dumps({"custom_call_config": facts})


@pytest.mark.parametrize(
    "config",
    ["", "{", "[]", "null", '{"custom_call_config": 3}', _call(body="&"), _call(body=3),
     _call(cost_estimate=[1]), "[" * 100_000],
)  # fmt: skip
def test_a_call_that_is_no_kernel_tells_nothing(config):
    assert mosaic_facts(config) == {}


def test_a_cost_that_is_no_number_is_not_taken():
    body = base64.b64encode(b"... tpu.iota ...").decode()
    cost = {"flops": float("inf"), "bytes_accessed": -1}
    assert mosaic_facts(_call(body=body, cost_estimate=cost)) == {"masked": True}


def test_a_product_in_a_scope_of_such_a_name_counts_its_flops():
    def run(x, y):
        with jax.named_scope("flash_attention_dq"):
            return x @ y

    side = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    graph = predictor.capture(jax.jit(run), side, side, platform="tpu")
    assert graph.nodes[0].module == "flash_attention_dq"
    assert lower_xla(graph, tpu()).kernels[0].matmul_flops == 2 * 64**3
