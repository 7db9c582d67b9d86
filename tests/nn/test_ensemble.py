"""Which device's effect applies, and several networks read as one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from predictor.hardware.catalogue import load_catalogue
from predictor.hardware.twins import twins
from predictor.nn.ensemble import Ensemble, effect_index
from predictor.nn.latency_net import LatencyNet

KNOWN = ("nvidia-tesla-p4", "nvidia-a100-pcie-40gb", "nvidia-v100-pcie-32gb")
NO_EDGES = torch.zeros(2, 0, dtype=torch.long)


@pytest.mark.parametrize(
    ("device", "index"),
    [
        ("nvidia-tesla-p4", 0),
        ("nvidia-a100-pcie-40gb", 1),
        ("nvidia-a100-pcie-80gb", 1),  # twin
        ("nvidia-v100-sxm2-16gb", 2),  # twin
        ("nvidia-l4", -1),
        ("my-own-device", -1),
    ],
)
def test_effect_of_itself_of_a_twin_of_none(device: str, index: int) -> None:
    assert effect_index(device, KNOWN) == index


def test_itself_comes_before_a_twin() -> None:
    both = ("nvidia-a100-pcie-80gb", "nvidia-a100-pcie-40gb")
    assert [effect_index(d, both) for d in both] == [0, 1]
    assert effect_index("nvidia-a100-pcie-40gb", ()) == -1


def test_effect_of_every_catalogue_device_is_of_its_own_group() -> None:
    known = tuple(load_catalogue())
    for device in known:
        assert known[effect_index(device, known)] == device
        others = [d for d in known if d != device]
        index = effect_index(device, others)
        assert index == -1 if len(twins(device)) == 1 else others[index] in twins(device)


def arguments(net: LatencyNet, nodes: int = 4) -> tuple[torch.Tensor, ...]:
    return (
        torch.randn(nodes, net.config.features, generator=torch.Generator().manual_seed(1)),
        torch.arange(nodes), NO_EDGES, torch.full((nodes,), -1), torch.zeros(nodes),
    )  # fmt: skip


def test_one_member_speaks_for_itself(make_net: Callable[..., LatencyNet]) -> None:
    net = make_net()
    alone = Ensemble(members=(net,), devices=KNOWN)
    given = arguments(net)
    torch.testing.assert_close(alone.log_ratio(*given), net(*given).detach())
    assert not alone.log_ratio(*given).requires_grad


def test_members_are_averaged_in_log_time(make_net: Callable[..., LatencyNet]) -> None:
    nets = (make_net(0), make_net(1))
    pair = Ensemble(members=nets, devices=KNOWN)
    given = arguments(nets[0])
    each = [net(*given).detach() for net in nets]
    mean = pair.log_ratio(*given)
    torch.testing.assert_close(mean, (each[0] + each[1]) / 2)
    assert bool((mean.diff(dim=1) >= 0).all())
    device, host = torch.tensor(30.0), torch.tensor(20.0)
    read = [net.measured_us(device, host).detach() for net in nets]
    torch.testing.assert_close(pair.measured_us(device, host), (read[0] * read[1]).sqrt())
    op, zero = torch.arange(3), torch.zeros(3)
    hosts = [net.host_us(op, zero, zero, torch.full((3,), -1)).detach() for net in nets]
    torch.testing.assert_close(
        pair.host_us(op, zero, zero, torch.full((3,), -1)), (hosts[0] * hosts[1]).sqrt()
    )
