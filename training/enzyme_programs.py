"""The programs of Enzyme-JAX's benchmark that need jax alone, written here with its shapes.

Upstream times each in up to three modes, compiled as one program:

| mode | what runs | what it returns |
|---|---|---|
| `Primal` | the function | its results |
| `Forward` | `jax.jvp` | results and tangents |
| `BothRev` | `jax.vjp`, then the pull-back of a cotangent | results and gradients |

Of the decoder `BothRev` returns the gradients alone.

`PreRev` and `PostRev` differ from `BothRev` in whether a pass of Enzyme runs before or after
differentiation: with plain jax there is no such pass, so these two were not timed. What upstream
takes from other packages (jaxmd, neuralgcm) is not here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

Mode = Literal["Primal", "Forward", "BothRev"]
MODES: tuple[Mode, ...] = ("Primal", "Forward", "BothRev")


def spec(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """A tensor by its shape."""
    return jax.ShapeDtypeStruct(shape, dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A function, what it is called with, and which modes upstream times."""

    name: str
    run: Callable[..., Any]
    arguments: tuple[Any, ...]
    modes: tuple[Mode, ...] = MODES
    gradients_alone: bool = False
    """Whether `BothRev` leaves the results out."""

    def program(self, mode: Mode) -> tuple[Any, tuple[Any, ...]]:
        """The jitted function of a mode, and the shapes of its arguments."""
        if mode == "Primal":
            return jax.jit(self.run), self.arguments
        count = len(self.arguments)
        if mode == "Forward":
            return jax.jit(
                lambda *given: jax.jvp(self.run, given[:count], given[count:])
            ), self.arguments * 2

        def pulled(cotangent: Any, *given: Any) -> Any:
            results, pull = jax.vjp(self.run, *given)
            return pull(cotangent) if self.gradients_alone else (results, pull(cotangent))

        return jax.jit(pulled), (jax.eval_shape(self.run, *self.arguments), *self.arguments)


# -- small ones -------------------------------------------------------------------------------


def _matched(x: Any) -> Any:
    """A product with ones, stored as the second row of a matrix of zeros."""
    product = jnp.ones((12, 12)) @ x
    return jnp.concatenate([jnp.zeros((1, 12)), product[None]])


def _two_products(x: Any) -> Any:
    """A product with ones, then a batch of two smaller ones, stored the same way."""
    halves = (jnp.ones((12, 12)) @ x).reshape(2, 6)
    product = jnp.einsum("bij,bj->bi", jnp.ones((2, 6, 6)), halves)
    return jnp.concatenate([jnp.zeros((1, 12)), product.reshape(1, 12)])


def _scaled(matrix: Any, factor: Any) -> Any:
    """The sum of a matrix, and the matrix times a number, both through its transpose."""
    turned = matrix.T
    return turned.sum(), (turned * factor).T


def _sine_gradient(positions: Any) -> Any:
    """Gradient of the sum of sines of the elements that two equal indices name."""
    index = jnp.array([2, 2])
    return (jax.grad(lambda x: jnp.sin(x[index]).sum())(positions),)


def _value_and_gradient(x: Any, factor: Any, shift: Any) -> Any:
    def value(x: Any) -> Any:
        return (x * factor + shift).sum(), (factor, shift)

    return jax.value_and_grad(value, has_aux=True)(x)


def small() -> Iterator[Benchmark]:
    """Programs of a few operations on a few numbers."""
    three, twelve = spec(3), spec(12)
    yield Benchmark(name="add_one", run=lambda x, y: x + 1 + y, arguments=(three, three))
    yield Benchmark(name="add_two", run=lambda x, z, y: x + y, arguments=(three,) * 3)
    yield Benchmark(name="sum", run=lambda x: x.sum(), arguments=(spec(50),))
    yield Benchmark(name="cache", run=lambda x: x[0] * x, arguments=(spec(288),))
    yield Benchmark(
        name="slicing", run=lambda x: x[0, :1, 0] * jnp.ones(3), arguments=(spec(1, 3, 1),)
    )
    yield Benchmark(name="actmtch", run=_matched, arguments=(twelve,))
    yield Benchmark(name="GenDot", run=_two_products, arguments=(twelve,))
    yield Benchmark(
        name="Concat", run=lambda x, y: jnp.concatenate([x, y]), arguments=(twelve, twelve)
    )
    yield Benchmark(name="hlo_ffi", run=_scaled, arguments=(spec(2, 2), spec()))
    yield Benchmark(
        name="const_scatter", run=lambda x: (x.at[0].multiply(3)[0],), arguments=(spec(1024**2),)
    )
    yield Benchmark(name="scatter_sum", run=_sine_gradient, arguments=(spec(4),))
    yield Benchmark(
        name="value_and_grad", run=_value_and_gradient, modes=("Primal",),
        arguments=(spec(1), spec(1), spec(1, dtype=jnp.int32)),
    )  # fmt: skip


# -- the decoder ------------------------------------------------------------------------------

WIDTH, INNER, LAYERS, HEADS, VOCABULARY, CONTEXT = 288, 768, 6, 6, 32_000, 256
CACHED = 1
"""Tokens whose keys and values are there already."""
DECODER = (
    f"llama_dim_{WIDTH}_hidden_dim_{INNER}_n_layers_{LAYERS}_n_heads_{HEADS}"
    f"_n_kv_heads_{HEADS}_vocab_size_{VOCABULARY}_seq_len_{CONTEXT}"
)


def _normed(x: Any, scale: Any) -> Any:
    return scale * x * (1 / jnp.sqrt(x @ x / WIDTH + 1e-5))


def _turns() -> Any:
    """The rotation of each pair of numbers at the new token's place: (pairs, 2, 2)."""
    size = WIDTH // HEADS
    angle = CACHED / 10_000.0 ** ((np.arange(0, WIDTH, 2) % size) / size)
    rows = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return np.array(rows, np.float32).transpose(2, 0, 1)


def _decoded(x: Any, weights: Mapping[str, Any], keys: Any, values: Any) -> Any:
    """One token through all layers, heads one by one; the logits are computed and left out."""
    turns, size = jnp.asarray(_turns()), WIDTH // HEADS
    for layer in range(LAYERS):
        w = {name: weight[layer] for name, weight in weights.items() if weight.ndim > 1
             and name != "output"}  # fmt: skip
        h = _normed(x, w["attention_norm"])
        query, key = (
            jnp.einsum("pij,pj->pi", turns, (w[n] @ h).reshape(-1, 2)).reshape(WIDTH)
            for n in ("query", "key")
        )
        held = jnp.concatenate([keys[layer], key[None]])
        shown = jnp.concatenate([values[layer], (w["value"] @ h)[None]])
        heads = []
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            score = held[:, part] @ query[part] / math.sqrt(size)
            share = jnp.exp(score - score.max())
            share = share / sum(share[place] for place in range(CACHED + 1))
            heads.append(share @ shown[:, part])
        x = x + w["out"] @ jnp.concatenate(heads)
        h = _normed(x, w["mlp_norm"])
        gate = w["gate"] @ h
        x = x + w["down"] @ (gate * (1 / (1 + jnp.exp(-gate))) * (w["up"] @ h))
    x = _normed(x, weights["norm"])
    weights["output"] @ x
    return x


def decoder() -> Benchmark:
    """The step of a small Llama for one token."""
    square = spec(LAYERS, WIDTH, WIDTH)
    weights = {
        "attention_norm": spec(LAYERS, WIDTH), "query": square, "key": square, "value": square,
        "out": square, "mlp_norm": spec(LAYERS, WIDTH), "gate": spec(LAYERS, INNER, WIDTH),
        "down": spec(LAYERS, WIDTH, INNER), "up": spec(LAYERS, INNER, WIDTH),
        "norm": spec(WIDTH), "output": spec(VOCABULARY, WIDTH),
    }  # fmt: skip
    cache = spec(LAYERS, CACHED, WIDTH)
    return Benchmark(
        name=DECODER, run=_decoded, arguments=(spec(WIDTH), weights, cache, cache),
        gradients_alone=True,
    )  # fmt: skip


def benchmarks() -> tuple[Benchmark, ...]:
    """All programs, by their names upstream."""
    return (*small(), decoder())
