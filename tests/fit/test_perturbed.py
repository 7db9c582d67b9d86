"""What training hides and shifts, so that a network describes devices instead of knowing them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from predictor.features.columns import COLUMNS, DEVICE_COLUMNS
from predictor.fit.data import fit_data
from predictor.fit.fitting import FitData, net_config
from predictor.fit.module import LatencyTraining
from predictor.fit.recipe import Recipe
from predictor.traces.sources.registry import read_source

DEVICES = ("nvidia-t4", "nvidia-l4")
OF_DEVICE = [COLUMNS.index(name) for name in DEVICE_COLUMNS]


@pytest.fixture(scope="module")
def fitted(data_dir: Path) -> FitData:
    data = read_source("neusight", [data_dir])
    return fit_data(data, Recipe(name="small"), DEVICES, DEVICES)


@pytest.fixture
def training(fitted: FitData) -> Callable[..., LatencyTraining]:
    def make(**network: float) -> LatencyTraining:
        recipe = Recipe.model_validate({"name": "small", "network": {"hidden": 8, **network}})
        config = net_config(recipe, len(fitted.hosts))
        return LatencyTraining(recipe, config, fitted.kernels, None, None, total_batches=10)

    return make


def test_a_devices_columns_are_shifted_alike_and_no_others(training) -> None:
    x_BF = torch.zeros(6, len(COLUMNS))
    device_B = torch.tensor([0, 1, 0, 1, -1, -1])
    torch.manual_seed(0)
    out = training(device_jitter=0.5)._perturbed(x_BF, device_B, torch.zeros(6).bool())
    shifted = torch.zeros(len(COLUMNS), dtype=torch.bool)
    shifted[OF_DEVICE] = True
    assert (out[:, ~shifted] == 0).all() and (out[:, shifted] != 0).all()
    assert torch.equal(out[0], out[2]) and torch.equal(out[4], out[5])
    assert not torch.equal(out[0], out[1])


def test_where_devices_are_hidden_a_known_one_is_what_it_is(training) -> None:
    x_BF, device_B = torch.zeros(4, len(COLUMNS)), torch.tensor([0, 0, 1, 1])
    hidden_B = torch.tensor([True, False, True, False])
    out = training(device_jitter=0.5, hide_device=0.5)._perturbed(x_BF, device_B, hidden_B)
    assert (out != 0).any(dim=1).tolist() == hidden_B.tolist()


def test_a_share_is_drawn_and_nothing_for_none(training) -> None:
    module = training()
    before = torch.random.get_rng_state()
    assert not module._drawn(1000, 0.0).any()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert 400 < int(module._drawn(1000, 0.5).sum()) < 600


def test_a_head_of_a_device_speaks_for_it_alone(training) -> None:
    net = training(device_heads=True).nets()[0].eval()
    assert net.device_head is not None and not net.device_head.any()
    x_NF, token_N = torch.randn(3, len(COLUMNS)), torch.zeros(3, dtype=torch.long)
    given = (x_NF, token_N, torch.zeros(2, 0, dtype=torch.long), torch.tensor([0, 1, -1]))
    with torch.no_grad():
        before = net(*given, torch.zeros(3))
        net.device_head[1] += 0.1
        moved = (net(*given, torch.zeros(3)) != before).any(dim=1)
    assert moved.tolist() == [False, True, False]


def test_a_graph_is_hidden_as_a_whole(training) -> None:
    module = training(device_jitter=0.5, hide_device=0.5)
    graph_N = torch.arange(50).repeat_interleave(3)
    torch.manual_seed(1)
    x_NF, device_N = module._shown(
        torch.zeros(150, len(COLUMNS)), torch.zeros(150, dtype=torch.long), graph_N
    )
    hidden = device_N < 0
    assert 15 < int(hidden[::3].sum()) < 35
    assert torch.equal(hidden[::3], hidden[1::3]) and torch.equal(hidden[::3], hidden[2::3])
    assert torch.equal((x_NF != 0).any(dim=1), hidden)
