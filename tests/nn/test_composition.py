"""Step time from kernel times, worked out by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.nn.composition import device_us, step_us

TIME_US = st.floats(1e-2, 1e8)


def step(device: float, host: float) -> float:
    times = torch.tensor([device, host], dtype=torch.float64)
    return float(step_us(times[:1], times[1:])[0])


def test_device_time_is_the_weighted_sum_of_each_graph() -> None:
    time_N = torch.tensor([1.0, 2.0, 4.0, 8.0])
    weight_N = torch.tensor([1.0, 10.0, 1.0, 3.0])
    graph_N = torch.tensor([0, 0, 2, 2])
    out_G = device_us(time_N, weight_N, graph_N, 3)
    assert out_G.tolist() == [21.0, 0.0, 28.0]


@settings(deadline=None)
@given(device=TIME_US, host=TIME_US)
def test_step_is_never_before_either_and_at_most_an_eighth_root_of_two_later(device, host):
    later = max(device, host)
    assert later * (1 - 1e-9) <= step(device, host) <= later * 2 ** (1 / 8) * (1 + 1e-9)


def test_equal_times_cost_an_eighth_root_of_two() -> None:
    assert step(100.0, 100.0) == pytest.approx(100.0 * 2 ** (1 / 8))


@pytest.mark.parametrize(("device", "host"), [(1e4, 1e2), (1e2, 1e4), (1e6, 0.0)])
def test_step_approaches_the_larger(device: float, host: float) -> None:
    assert step(device, host) == pytest.approx(max(device, host), rel=1e-6)


@settings(deadline=None)
@given(device=TIME_US, host=TIME_US, more=st.floats(1.001, 10.0))
def test_step_never_falls_when_a_part_grows(device, host, more):
    assert step(device * more, host) >= step(device, host) * (1 - 1e-9)
    assert step(device, host * more) >= step(device, host) * (1 - 1e-9)
