"""Bins of features, and the ratio that starts from the tile model."""

from __future__ import annotations

import pytest
import torch

from predictor.features.columns import COLUMNS
from predictor.nn.bins import BinLayer
from predictor.nn.latency_net import TILED
from predictor.nn.older_releases import weights_of_today


def layer(x: torch.Tensor, bins: int) -> BinLayer:
    made = BinLayer(bins, bins)
    made.cut(x)
    with torch.no_grad():
        made.linear.weight.copy_(torch.eye(bins))
    return made


def test_a_value_fills_the_bins_below_it():
    x = torch.stack([torch.linspace(0, 4, 401), torch.ones(401)], dim=1)
    binned = layer(x, 4)
    assert binned.column_K.tolist() == [0, 0, 0, 0]  # the constant column has none
    assert binned.low_K.tolist() == pytest.approx([0, 1, 2, 3])
    found = binned(torch.tensor([[2.5, 1.0], [-3.0, 1.0], [9.0, 1.0]]))
    assert found.tolist() == [[1, 1, 0.5, 0], [0, 0, 0, 0], [1, 1, 1, 1]]


def test_unused_places_stay_zero():
    x = torch.tensor([[0.0], [1.0], [2.0]]).repeat(50, 1)
    binned = layer(x, 40)
    assert binned(torch.tensor([[1e9]]))[0].count_nonzero() == (binned.low_K < 1e29).sum() <= 32


def test_columns_share_the_places():
    x = torch.rand(500, 7, generator=torch.Generator().manual_seed(0))
    binned = layer(x, 30)
    used = binned.column_K[binned.low_K < 1e29]
    assert torch.bincount(used, minlength=7).tolist() == [4] * 7


def test_too_few_places_are_refused():
    x = torch.rand(50, 9, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="8 bins for 9 columns"):
        BinLayer(8, 4).cut(x)


def test_bins_follow_their_columns():
    columns = [c for c in COLUMNS if c != "log_m"][::-1]
    moved = weights_of_today(
        {"member0.encoders.0.binned.column_K": torch.tensor([0, 1, 0])},
        columns=columns,
        tokens=[],
        ops=[],
    )
    expected = [COLUMNS.index(columns[i]) for i in (0, 1, 0)]
    assert moved["member0.encoders.0.binned.column_K"].tolist() == expected


def test_a_network_without_weights_says_what_the_tile_model_says(make_net):
    net = make_net(bins=16, tiled_prior=True, scale=0.0)
    x = torch.zeros(3, len(COLUMNS))
    x[:, TILED] = torch.tensor([-0.5, 0.0, 2.0])
    token, none = torch.zeros(3, dtype=torch.long), torch.full((3,), -1)
    found = net(x, token, torch.zeros(2, 0, dtype=torch.long), none, torch.zeros(3))
    assert found[:, 1].tolist() == pytest.approx([-0.5, 0.0, 2.0])
    assert (found[:, 0] < found[:, 1]).all() and (found[:, 1] < found[:, 2]).all()


def test_bins_change_what_is_said(make_net):
    net = make_net(bins=256)
    assert net.encoders[0].binned is not None
    net.encoders[0].binned.cut(
        torch.rand(100, len(COLUMNS), generator=torch.Generator().manual_seed(1))
    )
    x = torch.rand(5, len(COLUMNS), generator=torch.Generator().manual_seed(2))
    token, none = torch.zeros(5, dtype=torch.long), torch.full((5,), -1)
    edges = torch.zeros(2, 0, dtype=torch.long)
    before = net(x, token, edges, none, torch.zeros(5))
    with torch.no_grad():
        net.encoders[0].binned.linear.weight.zero_()
    assert not torch.allclose(before, net(x, token, edges, none, torch.zeros(5)))
