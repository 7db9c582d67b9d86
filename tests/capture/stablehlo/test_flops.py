"""FLOPs of JAX programs against XLA's own count."""

import pytest

pytest.importorskip("jax", reason="JAX programs need the jax extra")
pytest.importorskip("optax", reason="training steps in JAX need optax")

from jax_programs import PROGRAMS, mlp_sgd, sharded

import predictor
from predictor.cost.hlo import valid_positions, xla_flops


@pytest.mark.parametrize("name", PROGRAMS)
def test_xla_counts_the_same(name):
    """XLA counts the body of a loop once, and so does this sum."""
    jitted, arguments = PROGRAMS[name]()
    theirs = jitted.lower(*arguments).cost_analysis()["flops"]
    graph = predictor.capture(jitted, *arguments, platform="cpu")
    assert sum(xla_flops(node) for node in graph.nodes) == pytest.approx(theirs, rel=0.02)


def _product_flops(graph):
    return sum(xla_flops(n) for n in graph.nodes if n.op == "stablehlo.dot_general")


def test_a_device_of_four_does_a_quarter():
    jitted, arguments = mlp_sgd()
    whole = predictor.capture(jitted, *arguments)
    jitted, arguments = sharded(4)
    ours = predictor.capture(jitted, *arguments)
    assert 4 * _product_flops(ours) == _product_flops(whole)
    exchanged = [n for n in ours.nodes if n.op == "stablehlo.all_reduce"]
    assert {n.attrs["replica_groups"][1] for n in exchanged} == {4}
    gradients = sum(s.numel for n in exchanged for s in n.outputs)
    assert gradients >= 784 * 1024 + 1024 * 1024 + 1024 * 10


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ({"size": 8, "taps": 3, "places": 8, "stride": 1, "low": 1, "base": 1, "window": 1}, 22),
        ({"size": 8, "taps": 3, "places": 6, "stride": 1, "low": 0, "base": 1, "window": 1}, 18),
        ({"size": 4, "taps": 3, "places": 8, "stride": 1, "low": 1, "base": 2, "window": 1}, 11),
        ({"size": 8, "taps": 6, "places": 3, "stride": 1, "low": 0, "base": 1, "window": 1}, 18),
        ({"size": 1, "taps": 1, "places": 1, "stride": 1, "low": 0, "base": 1, "window": 1}, 1),
    ],
)
def test_padding_and_holes_are_no_products(sizes, count):
    """Counted by hand: every pair of a place and a tap that meets an element."""
    by_hand = 0
    for place in range(sizes["places"]):
        for tap in range(sizes["taps"]):
            at = place * sizes["stride"] + tap * sizes["window"] - sizes["low"]
            by_hand += at % sizes["base"] == 0 and 0 <= at // sizes["base"] < sizes["size"]
    assert valid_positions(**sizes) == by_hand == count
