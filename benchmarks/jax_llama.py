"""A small Llama-3 training step in JAX, sharded as FSDP: what Hespas measured.

7 layers, embedding 576, 9 heads of 128, MLP 2016, vocabulary 128,256, sequence 4,096, one sequence
a device, bf16 arithmetic with fp32 parameters and AdamW. The parameters lie in shards over the
`fsdp` axis; every layer gathers its own before it is used, and its gradients are reduced and
scattered.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

VOCABULARY, LAYERS, WIDTH, HEADS, HEAD, INNER, LENGTH = 128256, 7, 576, 9, 128, 2016, 4096


def parameters(dtype: Any = jnp.float32, layers: int = LAYERS) -> dict[str, Any]:
    """Shapes of all parameters."""

    def spec(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    layer = {
        "attention_norm": spec(WIDTH), "mlp_norm": spec(WIDTH),
        "query": spec(WIDTH, HEADS * HEAD), "key": spec(WIDTH, HEADS * HEAD),
        "value": spec(WIDTH, HEADS * HEAD), "out": spec(HEADS * HEAD, WIDTH),
        "gate": spec(WIDTH, INNER), "up": spec(WIDTH, INNER), "down": spec(INNER, WIDTH),
    }  # fmt: skip
    return {
        "embedding": spec(VOCABULARY, WIDTH),
        "layers": [layer for _ in range(layers)],
        "norm": spec(WIDTH),
        "head": spec(WIDTH, VOCABULARY),
    }


def norm(x: Any, scale: Any) -> Any:
    """RMS norm in fp32."""
    wide = x.astype(jnp.float32)
    root = jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)
    return (wide * root).astype(x.dtype) * scale.astype(x.dtype)


def rotary(x: Any) -> Any:
    """Rotary position embedding."""
    length, size = x.shape[1], x.shape[-1]
    angle = jnp.arange(length)[:, None] / 500000.0 ** (jnp.arange(0, size, 2) / size)
    cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def block(p: dict[str, Any], x: Any) -> Any:
    """One decoder layer."""
    w = {name: value.astype(x.dtype) for name, value in p.items()}
    batch, length, _ = x.shape
    h = norm(x, w["attention_norm"])
    q, k, v = ((h @ w[n]).reshape(batch, length, HEADS, HEAD) for n in ("query", "key", "value"))
    q, k = rotary(q), rotary(k)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / HEAD**0.5
    mask = jnp.tril(jnp.ones((length, length), bool))
    share = jax.nn.softmax(jnp.where(mask, scores, -1e30), -1).astype(x.dtype)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", share, v).reshape(batch, length, -1) @ w["out"]
    h = norm(x, w["mlp_norm"])
    return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]


def loss(p: dict[str, Any], ids: Any, labels: Any) -> Any:
    """Cross-entropy of the next token."""
    x = p["embedding"].astype(jnp.bfloat16)[ids]
    for layer in p["layers"]:
        x = block(layer, x)
    logits = norm(x, p["norm"]) @ p["head"].astype(x.dtype)
    return optax.softmax_cross_entropy_with_integer_labels(
        logits.astype(jnp.float32), labels
    ).mean()


def step(optimizer: Any) -> Any:
    """A training step."""

    def run(params: Any, opt_state: Any, ids: Any, labels: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, ids, labels)
        update, opt_state = optimizer.update(gradient, opt_state, params)
        return optax.apply_updates(params, update), opt_state, value

    return run


def program(
    devices: int = 4, *, layers: int = LAYERS, length: int = LENGTH, dtype: Any = jnp.float32
) -> tuple[Any, tuple[Any, ...]]:
    """The jitted step and its arguments; `devices` of 1 leaves the sharding out."""
    optimizer = optax.adamw(3e-4)
    params = parameters(dtype, layers)
    state = jax.eval_shape(optimizer.init, params)
    ids = jax.ShapeDtypeStruct((devices, length), jnp.int32)
    if devices == 1:
        return jax.jit(step(optimizer), donate_argnums=(0, 1)), (params, state, ids, ids)
    mesh = AbstractMesh((devices,), ("fsdp",))  # no device of it is needed

    def split(leaf: Any) -> Any:
        axis = next((i for i, s in enumerate(leaf.shape) if s % devices == 0), None)
        spec = [None] * len(leaf.shape)
        if axis is not None:
            spec[axis] = "fsdp"
        return NamedSharding(mesh, PartitionSpec(*spec))

    places = jax.tree.map(split, (params, state))
    data = NamedSharding(mesh, PartitionSpec("fsdp"))
    jitted = jax.jit(
        step(optimizer), in_shardings=(*places, data, data),
        out_shardings=(*places, NamedSharding(mesh, PartitionSpec())), donate_argnums=(0, 1),
    )  # fmt: skip
    return jitted, (params, state, ids, ids)
