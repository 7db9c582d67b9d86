"""Priors from the cache, and columns that are not read."""

from __future__ import annotations

import pytest
import torch

from predictor.features.columns import COLUMNS
from predictor.nn.latency_net import BASE, STREAMED, LatencyNet


def middle(net: LatencyNet, x_NF: torch.Tensor) -> torch.Tensor:
    n = len(x_NF)
    token_N, none = torch.zeros(n, dtype=torch.long), torch.zeros(2, 0, dtype=torch.long)
    with torch.no_grad():
        return net(x_NF, token_N, none, torch.full((n,), -1), torch.zeros(n))[:, 1]


def random_rows(seed: int) -> torch.Tensor:
    return torch.randn(50, len(COLUMNS), generator=torch.Generator().manual_seed(seed))


def test_a_network_without_weights_says_what_the_cache_leaves(make_net):
    net = make_net(streamed_prior=True, scale=0.0)
    x_NF = torch.zeros(3, len(COLUMNS))
    x_NF[:, STREAMED] = torch.tensor([-2.0, 0.0, 0.4])
    assert middle(net, x_NF).tolist() == pytest.approx([-2.0, 0.0, 0.4])


def test_the_network_reads_the_time_that_the_cache_leaves(make_net):
    net = make_net(streamed_prior=True)
    x_NF = random_rows(1)
    net.prepare([(x_NF, torch.zeros(50, dtype=torch.long))], unread=["log_streamed"])
    shorter = x_NF.clone()
    shorter[:, BASE] += shorter[:, STREAMED]
    shorter[:, STREAMED] = 0.0
    torch.testing.assert_close(middle(net, x_NF), middle(net, shorter) + x_NF[:, STREAMED])


def test_columns_that_are_not_read_change_nothing(make_net):
    net, x_NF = make_net(), random_rows(2)
    net.prepare([(x_NF, torch.zeros(50, dtype=torch.long))], unread=["log_m", "log_tiled"])
    other = x_NF.clone()
    other[:, [COLUMNS.index("log_m"), COLUMNS.index("log_tiled")]] += 3.0
    assert torch.equal(middle(net, x_NF), middle(net, other))
    other[:, COLUMNS.index("log_n")] += 3.0
    assert not torch.equal(middle(net, x_NF), middle(net, other))
