"""Updates in place: what is moved under XLA, beside the bytes of the compiled program.

XLA counts the body of a loop once, as the kernels here are counted without their `repeats`.
"""

import pytest

pytest.importorskip("jax", reason="JAX programs need the jax extra")

import jax
import jax.numpy as jnp

import predictor
from predictor.lower.xla import lower_xla
from predictor.lower.xla_backends import CPU, GPU

ROWS = jax.ShapeDtypeStruct((1024, 512), jnp.float32)
ROW = jax.ShapeDtypeStruct((512,), jnp.float32)
PLACE = jax.ShapeDtypeStruct((), jnp.int32)
WHOLE = 4 * 1024 * 512


def _update(x, i, v):
    return x.at[i].set(v)


def _loop(x, v):
    return jax.lax.fori_loop(0, 16, lambda i, c: c.at[i].set(v * i), x)


def _read_and_write(x, v):
    return jax.lax.fori_loop(0, 16, lambda i, c: c.at[i].set(c[i] * v), x)


def _stacked(x):
    return jax.lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(512), x)


def _decode(cache, q):
    def step(carry, i):
        cache, q = carry
        cache = jax.lax.dynamic_update_slice(cache, q[None], (i, 0))
        return (cache, jax.nn.softmax(cache @ q) @ cache), ()

    return jax.lax.scan(step, (cache, q), jnp.arange(16))[0]


def _from_nothing(i, v):
    return jnp.zeros((1024, 512)).at[i].set(v)


def _elementwise(x, v):
    return jax.lax.fori_loop(0, 16, lambda i, c: c * v, x)


def _same_array_twice(x, v):
    return jax.lax.fori_loop(0, 16, lambda i, c: (c[0] * x, c[1] + 1), (x, v))


def _twice_the_same(x, v):
    def body(i, c):
        return c[0].at[0].set(v), c[1].at[1].set(v)

    return jax.lax.fori_loop(0, 16, body, (x, x))


CASES = {
    "one array carried twice": (_twice_the_same, (ROWS, ROW), False),
    "an argument is copied": (_update, (ROWS, PLACE, ROW), False),
    "a donated one is not": (_update, (ROWS, PLACE, ROW), True),
    "a loop copies once": (_loop, (ROWS, ROW), False),
    "or not at all": (_loop, (ROWS, ROW), True),
    "read before written": (_read_and_write, (ROWS, ROW), False),
    "results stacked by a scan": (_stacked, (ROWS,), False),
    "a cache in a scan": (_decode, (ROWS, ROW), False),
    "zeros filled first": (_from_nothing, (PLACE, ROW), False),
    "element by element": (_elementwise, (ROWS, ROW), False),
    "carried and read": (_same_array_twice, (ROWS, ROW), False),
}


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_of_the_compiled_program(name):
    run, arguments, donated = CASES[name]
    jitted = jax.jit(run, donate_argnums=0 if donated else None)
    counted = jitted.lower(*arguments).compile().cost_analysis()["bytes accessed"]
    ours = sum(k.bytes for k in lower_xla(predictor.capture(jitted, *arguments), CPU).kernels)
    assert ours == pytest.approx(counted, rel=0.01, abs=20_000)


@pytest.mark.parametrize("donated", [False, True])
def test_a_trip_of_a_loop_moves_what_it_changes(donated):
    jitted = jax.jit(_loop, donate_argnums=0 if donated else None)
    kernels = lower_xla(predictor.capture(jitted, ROWS, ROW), GPU).kernels
    inside = [k for k in kernels if k.repeats == 16]
    assert max(k.bytes for k in inside) < WHOLE / 100
    copies = [k for k in kernels if k.name == "xla.copy"]
    assert [k.bytes for k in copies] == ([] if donated else [2 * WHOLE])


def test_a_function_that_is_called_may_write_on_what_it_is_given_last():
    @jax.jit
    def inner(y, i, v):
        return y.at[i].set(v)

    def last(x, i, v):
        return inner(x * 2, i, v)

    def kept(x, i, v):
        y = x * 2
        z = inner(y, i, v)
        return z, y + z.sum()

    def moved(run):
        kernels = lower_xla(predictor.capture(jax.jit(run), ROWS, PLACE, ROW), GPU).kernels
        return sum(k.bytes for k in kernels if "scatter" in k.name)

    assert moved(last) < WHOLE / 100
    assert moved(kept) > 2 * WHOLE


def test_a_loop_in_a_loop_copies_once_for_all():
    def outer(x, v):
        def body(i, c):
            return jax.lax.fori_loop(0, 8, lambda j, d: d.at[j].set(v * i), c)

        return jax.lax.fori_loop(0, 4, body, x)

    kernels = lower_xla(predictor.capture(jax.jit(outer), ROWS, ROW), GPU).kernels
    copies = [k for k in kernels if k.bytes >= WHOLE]
    assert [(k.name, k.repeats) for k in copies] == [("xla.copy", 1)]


@pytest.mark.parametrize("kept", [False, True])
def test_a_branch_writes_on_what_nothing_reads_after_it(kept):
    def run(x, i, v):
        y = x * 2
        z = jax.lax.cond(i > 0, lambda y: y.at[i].set(v), lambda y: y, y)
        return (z, y + z.sum()) if kept else z

    kernels = lower_xla(predictor.capture(jax.jit(run), ROWS, PLACE, ROW), GPU).kernels
    moved = sum(k.bytes for k in kernels if "scatter" in k.name)
    assert moved > 2 * WHOLE if kept else moved < WHOLE / 100
