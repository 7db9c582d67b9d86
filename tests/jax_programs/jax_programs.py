"""JAX programs of many kinds, small: what captures and lowerings are compared with XLA on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

Program = tuple[Any, tuple[Any, ...]]
"""A jitted function and the shapes of its arguments."""


def spec(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def trained(loss: Any, params: Any, optimizer: Any, *data: Any) -> Program:
    """A training step of `loss(params, *data)`."""
    state = jax.eval_shape(optimizer.init, params)

    def step(params, opt_state, *batch):
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        update, opt_state = optimizer.update(gradient, opt_state, params)
        return optax.apply_updates(params, update), opt_state, value

    return jax.jit(step), (params, state, *data)


def stacked(count: int, params: Any) -> Any:
    return jax.tree.map(lambda s: spec(count, *s.shape, dtype=s.dtype), params)


def run_mlp(params, x):
    h = jax.nn.relu(x @ params["w1"] + params["b1"])
    h = jax.nn.relu(h @ params["w2"] + params["b2"])
    return h @ params["w3"] + params["b3"]


def mlp_params(into: int = 784, width: int = 1024, out: int = 10) -> dict[str, Any]:
    return {
        "w1": spec(into, width), "b1": spec(width), "w2": spec(width, width), "b2": spec(width),
        "w3": spec(width, out), "b3": spec(out),
    }  # fmt: skip


def mlp() -> Program:
    return jax.jit(run_mlp), (mlp_params(), spec(256, 784))


def labels_loss(run: Any) -> Any:
    def loss(params, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(run(params, x), y).mean()

    return loss


def mlp_adamw() -> Program:
    data = spec(256, 784), spec(256, dtype=jnp.int32)
    return trained(labels_loss(run_mlp), mlp_params(), optax.adamw(1e-3), *data)


def mlp_sgd() -> Program:
    def loss(params, x, y):
        return jnp.mean((run_mlp(params, x) - y) ** 2)

    data = spec(256, 784), spec(256, 10)
    return trained(loss, mlp_params(), optax.sgd(1e-2, momentum=0.9), *data)


def mlp_vmap() -> Program:
    return jax.jit(jax.vmap(run_mlp)), (stacked(8, mlp_params(256, 512)), spec(8, 64, 256))


def conv(x, w, stride: int = 1, groups: int = 1):
    return jax.lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )  # fmt: skip


def run_cnn(p, x):
    x = jax.nn.relu(conv(x, p["c1"], 2) + p["b1"])
    x = jax.nn.relu(conv(x, p["c2"]) + p["b2"])
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jax.nn.relu(conv(x, p["c3"], 2) + p["b3"])
    return x.mean((1, 2)) @ p["w"] + p["b"]


def cnn_params() -> dict[str, Any]:
    return {
        "c1": spec(3, 3, 3, 32), "b1": spec(32), "c2": spec(3, 3, 32, 64), "b2": spec(64),
        "c3": spec(3, 3, 64, 128), "b3": spec(128), "w": spec(128, 10), "b": spec(10),
    }  # fmt: skip


def cnn() -> Program:
    return jax.jit(run_cnn), (cnn_params(), spec(32, 64, 64, 3))


def cnn_sgd() -> Program:
    data = spec(32, 64, 64, 3), spec(32, dtype=jnp.int32)
    return trained(labels_loss(run_cnn), cnn_params(), optax.sgd(1e-2), *data)


def depthwise() -> Program:
    def run(x, d, w):
        return jax.nn.relu(conv(jax.nn.relu(conv(x, d, groups=64)), w))

    return jax.jit(run), (spec(16, 56, 56, 64), spec(3, 3, 1, 64), spec(1, 1, 64, 128))


def norm(x, scale, shift):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale + shift


def block(p, x, heads: int = 8):
    batch, length, width = x.shape
    h = norm(x, p["g1"], p["s1"])
    qkv = (h @ p["wqkv"]).reshape(batch, length, 3, heads, width // heads)
    q, k, v = (qkv[:, :, i] for i in range(3))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(width // heads).astype(x.dtype)
    mask = jnp.tril(jnp.ones((length, length), bool))
    share = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(x.dtype).min), -1)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", share, v).reshape(batch, length, width) @ p["wo"]
    h = norm(x, p["g2"], p["s2"])
    return x + jax.nn.gelu(h @ p["w1"]) @ p["w2"]


def block_params(width: int = 512, dtype: Any = jnp.float32) -> dict[str, Any]:
    shapes = {
        "g1": (width,), "s1": (width,), "g2": (width,), "s2": (width,),
        "wqkv": (width, 3 * width), "wo": (width, width), "w1": (width, 4 * width),
        "w2": (4 * width, width),
    }  # fmt: skip
    return {name: spec(*shape, dtype=dtype) for name, shape in shapes.items()}


def transformer() -> Program:
    return jax.jit(block), (block_params(), spec(4, 256, 512))


def transformer_bf16() -> Program:
    x = spec(4, 256, 512, dtype=jnp.bfloat16)
    return jax.jit(block), (block_params(dtype=jnp.bfloat16), x)


def transformer_scan() -> Program:
    def run(params, x):
        return jax.lax.scan(lambda x, p: (block(p, x), None), x, params)[0]

    return jax.jit(run), (stacked(6, block_params(256)), spec(4, 128, 256))


def transformer_adamw() -> Program:
    def loss(p, ids, y):
        x = p["embedding"][ids]
        for layer in p["blocks"]:
            x = block(layer, x)
        return optax.softmax_cross_entropy_with_integer_labels(x @ p["out"], y).mean()

    params = {
        "embedding": spec(4096, 256), "blocks": [block_params(256), block_params(256)],
        "out": spec(256, 4096),
    }  # fmt: skip
    ids = spec(4, 128, dtype=jnp.int32)
    return trained(loss, params, optax.adamw(1e-3), ids, ids)


def attention() -> Program:
    def run(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    x = spec(2, 512, 8, 64)
    return jax.jit(run), (x, x, x)


def rnn_scan() -> Program:
    def run(p, xs, h):
        def cell(h, x):
            h = jnp.tanh(x @ p["wx"] + h @ p["wh"] + p["b"])
            return h, h

        return jax.lax.scan(cell, h, xs)

    params = {"wx": spec(128, 256), "wh": spec(256, 256), "b": spec(256)}
    return jax.jit(run), (params, spec(64, 32, 128), spec(32, 256))


def lstm(p, xs, h, c):
    """An LSTM over steps that come first."""

    def cell(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ p["wx"] + h @ p["wh"] + p["b"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return jax.lax.scan(cell, (h, c), xs)


def lstm_scan() -> Program:
    params = {"wx": spec(128, 1024), "wh": spec(256, 1024), "b": spec(1024)}
    return jax.jit(lstm), (params, spec(64, 32, 128), spec(32, 256), spec(32, 256))


def elementwise() -> Program:
    def run(x, y):
        return jnp.tanh(x * y + 1) * jnp.exp(-x) + y, (x - y).sum()

    return jax.jit(run), (spec(1024, 2048), spec(1024, 2048))


def embedding_gradient() -> Program:
    def loss(table, ids):
        return (table[ids] ** 2).sum()

    return jax.jit(jax.grad(loss)), (spec(32000, 256), spec(8, 512, dtype=jnp.int32))


def sharded(devices: int = 4) -> Program:
    """A training step of an MLP, its batch split over devices that need not be there."""
    from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

    mesh = AbstractMesh((devices,), ("data",))
    jitted, (params, state, x, y) = mlp_sgd()

    def placed(leaf: Any, *axes: Any) -> Any:
        place = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)

    whole = jax.tree.map(placed, (params, state))
    return jitted, (*whole, placed(x, "data"), placed(y, "data"))


PROGRAMS: Mapping[str, Callable[[], Program]] = {
    f.__name__: f
    for f in (
        mlp, mlp_adamw, mlp_sgd, mlp_vmap, cnn, cnn_sgd, depthwise, transformer, transformer_bf16,
        transformer_scan, transformer_adamw, attention, rnn_scan, lstm_scan, elementwise,
        embedding_gradient,
    )
}  # fmt: skip
"""Programs that run on one device."""
FUSED: tuple[str, ...] = (
    "mlp", "mlp_adamw", "mlp_sgd", "mlp_vmap", "depthwise", "transformer", "transformer_scan",
    "transformer_adamw", "attention", "rnn_scan", "lstm_scan", "elementwise",
)  # fmt: skip
"""Programs whose traffic XLA's CPU backend counts as an accelerator's: it has no fp32 stand-in for
bf16 in them, no call that swallows a network whole, and no scatter that copies its target."""
