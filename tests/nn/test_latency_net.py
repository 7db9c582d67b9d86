"""Laws of the network that hold for any weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from predictor.features.columns import COLUMNS
from predictor.features.table import OP_NAMES
from predictor.graph.ops import TOKENS
from predictor.nn.latency_net import LatencyNet, NetConfig
from predictor.nn.tokens import trunk_tokens

Inputs = dict[str, Tensor]
MakeNet = Callable[..., LatencyNet]


def draw(net: LatencyNet, nodes: int, seed: int = 0, *, links: int = 2) -> Inputs:
    """Random kernels in a random DAG, on known devices and unknown ones."""
    g = torch.Generator().manual_seed(seed)
    size = (nodes * links,)
    ends = torch.stack([torch.randint(0, nodes, size, generator=g) for _ in range(2)])
    edges = torch.stack([ends.min(0).values, ends.max(0).values])
    return {
        "x_NF": 2.0 * torch.randn(nodes, net.config.features, generator=g),
        "token_N": torch.randint(0, net.config.tokens, (nodes,), generator=g),
        "edge_index_2E": edges[:, edges[0] < edges[1]],
        "device_N": torch.randint(-1, net.config.hosts, (nodes,), generator=g),
        "isolated_N": torch.randint(0, 2, (nodes,), generator=g).float(),
    }


def run(net: LatencyNet, inputs: Inputs) -> Tensor:
    with torch.no_grad():
        return net(**inputs)


def rows(inputs: Inputs, index: Tensor) -> Inputs:
    """The kernels at `index`, without edges."""
    picked = {k: v[index] for k, v in inputs.items() if k != "edge_index_2E"}
    return {**picked, "edge_index_2E": torch.zeros(2, 0, dtype=torch.long)}


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 5.0), nodes=st.integers(1, 12))
def test_quantiles_are_ordered_finite_and_the_middle_is_limited(seed, scale, nodes):
    config = NetConfig(
        features=len(COLUMNS), tokens=len(TOKENS), ops=len(OP_NAMES), hosts=2, hidden=8
    )
    torch.manual_seed(seed)
    net = LatencyNet(config, trunk_tokens()).eval()
    with torch.no_grad():
        for weight in net.parameters():
            weight.normal_(0.0, scale)
    out = run(net, draw(net, nodes, seed))
    assert out.shape == (nodes, 3)
    assert bool(out.isfinite().all())
    assert bool((out[:, 0] <= out[:, 1]).all())
    assert bool((out[:, 1] <= out[:, 2]).all())
    assert bool((out[:, 1].abs() <= config.ratio_limit).all())


def test_permuting_kernels_permutes_the_output(make_net: MakeNet) -> None:
    net = make_net()
    inputs = draw(net, 20)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(3))
    place = torch.empty_like(order)
    place[order] = torch.arange(20)
    moved = {k: v[order] for k, v in inputs.items() if k != "edge_index_2E"}
    moved["edge_index_2E"] = place[inputs["edge_index_2E"]]
    assert inputs["edge_index_2E"].shape[1] > 10
    torch.testing.assert_close(run(net, moved), run(net, inputs)[order])


def test_order_of_edges_does_not_matter(make_net: MakeNet) -> None:
    net = make_net()
    inputs = draw(net, 20)
    turned = {**inputs, "edge_index_2E": inputs["edge_index_2E"].flip(1)}
    torch.testing.assert_close(run(net, turned), run(net, inputs))


def test_kernels_alone_are_graphs_of_one_node(make_net: MakeNet) -> None:
    net = make_net()
    inputs = rows(draw(net, 9), torch.arange(9))
    each = torch.cat([run(net, rows(inputs, torch.tensor([i]))) for i in range(9)])
    torch.testing.assert_close(run(net, inputs), each)


def test_graphs_side_by_side_do_not_touch(make_net: MakeNet) -> None:
    net = make_net()
    first, second = draw(net, 7, 1), draw(net, 5, 2)
    both = {k: torch.cat([first[k], second[k]]) for k in first if k != "edge_index_2E"}
    both["edge_index_2E"] = torch.cat([first["edge_index_2E"], second["edge_index_2E"] + 7], dim=1)
    apart = torch.cat([run(net, first), run(net, second)])
    torch.testing.assert_close(run(net, both), apart)


def test_a_closed_gate_makes_edges_change_nothing(make_net: MakeNet) -> None:
    net = make_net()
    inputs = draw(net, 12)
    alone = rows(inputs, torch.arange(12))
    assert not torch.allclose(run(net, inputs), run(net, alone))
    with torch.no_grad():
        net.message_gate.zero_()
    torch.testing.assert_close(run(net, inputs), run(net, alone))


def test_messages_reach_as_far_as_there_are_layers(make_net: MakeNet) -> None:
    net = make_net(message_layers=2)
    inputs = draw(net, 6)
    inputs["edge_index_2E"] = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    before = run(net, inputs)
    inputs["x_NF"] = inputs["x_NF"].clone()
    inputs["x_NF"][0] += 1.0
    changed = (run(net, inputs) != before).any(dim=1)
    assert changed.tolist() == [True, True, True, False, False, False]


def test_an_unknown_device_has_no_effect_of_its_own(make_net: MakeNet) -> None:
    net = make_net()
    inputs = draw(net, 10)
    unknown = {**inputs, "device_N": torch.full((10,), -1)}
    known = {**inputs, "device_N": torch.zeros(10, dtype=torch.long)}
    before = run(net, unknown)
    assert not torch.allclose(run(net, known), before)
    with torch.no_grad():
        net.device_effect.zero_()
        net.device_isolated.zero_()
    torch.testing.assert_close(run(net, known), before)
    torch.testing.assert_close(run(net, unknown), before)


def host(net: LatencyNet, isolated: float, host_index: int, scalar: float = 0.0) -> Tensor:
    ops = torch.arange(net.config.ops)
    with torch.no_grad():
        return net.host_us(
            ops, torch.full(ops.shape, scalar), torch.full(ops.shape, isolated),
            torch.full(ops.shape, host_index),
        )  # fmt: skip


def test_host_time_is_positive_and_an_unknown_host_is_the_average_one(make_net: MakeNet) -> None:
    net = make_net()
    for isolated in (0.0, 1.0):
        assert bool((host(net, isolated, 0) > 0).all())
        speed = torch.exp(net.host_device.detach()[1])
        torch.testing.assert_close(host(net, isolated, 1), host(net, isolated, -1) * speed)
    factor = torch.exp(net.host_scalar_arg.detach())
    torch.testing.assert_close(host(net, 0.0, 0, 1.0), host(net, 0.0, 0) * factor)


@pytest.mark.parametrize(("device_us", "host_us"), [(1.0, 40.0), (40.0, 1.0), (10.0, 10.0)])
def test_a_timer_reads_the_later_of_launch_and_kernel(
    make_net: MakeNet, device_us: float, host_us: float
) -> None:
    read = _read(make_net(), device_us, host_us)
    assert read >= max(device_us, host_us) * (1 - 1e-6)
    assert read <= 2 * max(device_us, host_us)


def test_a_timer_reading_approaches_the_larger_time(make_net: MakeNet) -> None:
    net = make_net()
    assert _read(net, 1e5, 1.0) == pytest.approx(1e5, rel=1e-4)
    assert _read(net, 1.0, 1e5) == pytest.approx(1e5, rel=1e-4)
    assert _read(net, 30.0, 20.0) < _read(net, 31.0, 20.0)
    assert _read(net, 30.0, 20.0) < _read(net, 30.0, 21.0)


def _read(net: LatencyNet, device_us: float, host_us: float) -> float:
    with torch.no_grad():
        return float(net.measured_us(torch.tensor(device_us), torch.tensor(host_us)))


def test_features_that_never_varied_are_not_read(make_net: MakeNet) -> None:
    net = make_net()
    inputs = draw(net, 20)
    constant = torch.zeros(net.config.features, dtype=torch.bool)
    constant[3] = True
    moved = {**inputs, "x_NF": inputs["x_NF"] + 5.0 * constant}
    assert not torch.equal(run(net, inputs), run(net, moved))
    net.silence(constant[None])
    assert torch.equal(run(net, inputs), run(net, moved))
    other = {**inputs, "x_NF": inputs["x_NF"] + 0.5 * constant.roll(1)}
    assert not torch.equal(run(net, inputs), run(net, other))
