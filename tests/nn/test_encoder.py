"""Encoders of op classes: which reads what, and where their scales come from."""

from __future__ import annotations

from collections.abc import Callable

import torch

from predictor.features.columns import COLUMNS
from predictor.graph.ops import TOKENS
from predictor.nn.latency_net import LatencyNet
from predictor.nn.tokens import encoder_groups

MakeNet = Callable[..., LatencyNet]
GEMM, ATTENTION, SOFTMAX = (TOKENS.index(t) for t in ("gemm", "attention", "softmax"))


def predicted(net: LatencyNet, x_NF: torch.Tensor, token_N: torch.Tensor) -> torch.Tensor:
    none, n = torch.zeros(2, 0, dtype=torch.long), len(x_NF)
    with torch.no_grad():
        return net(x_NF, token_N, none, torch.full((n,), -1), torch.zeros(n))


def test_a_class_is_read_by_its_own_encoder_alone(make_net: MakeNet) -> None:
    net = make_net(class_encoders=True)
    x_NF = torch.randn(6, len(COLUMNS), generator=torch.Generator().manual_seed(1))
    token_N = torch.tensor([GEMM, ATTENTION, SOFTMAX, GEMM, SOFTMAX, ATTENTION])
    before = predicted(net, x_NF, token_N)
    group = int(encoder_groups()[ATTENTION])
    with torch.no_grad():
        for weight in net.encoders[group].parameters():
            weight.add_(0.3)
    changed = (predicted(net, x_NF, token_N) != before).any(dim=1)
    assert changed.tolist() == [False, True, False, False, False, True]


def test_rows_together_and_alone_are_the_same(make_net: MakeNet) -> None:
    net = make_net(class_encoders=True)
    x_NF = torch.randn(5, len(COLUMNS), generator=torch.Generator().manual_seed(2))
    token_N = torch.tensor([ATTENTION, GEMM, SOFTMAX, ATTENTION, GEMM])
    together = predicted(net, x_NF, token_N)
    alone = [predicted(net, x_NF[i : i + 1], token_N[i : i + 1]) for i in range(5)]
    torch.testing.assert_close(together, torch.cat(alone))


def test_each_encoder_takes_scales_from_its_own_rows(make_net: MakeNet) -> None:
    net = make_net(class_encoders=True)
    x_NF = torch.randn(40, len(COLUMNS), generator=torch.Generator().manual_seed(3))
    token_N = torch.tensor([GEMM, SOFTMAX] * 20)
    x_NF[token_N == GEMM] += 5.0
    x_NF[token_N == GEMM, 0] = 7.0
    constant = net.prepare([(x_NF, token_N)])
    group = encoder_groups()
    torch.testing.assert_close(
        net.of_group(int(group[GEMM])).x_mean_F, x_NF[token_N == GEMM].mean(0)
    )
    assert float(net.of_group(int(group[SOFTMAX])).x_mean_F.abs().max()) < 2.0
    assert constant[group[GEMM], 0] and not constant[group[SOFTMAX], 0]
    assert bool(constant[group[ATTENTION]].all())  # no row of it


def test_rows_of_a_group_come_from_all_parts_in_order(make_net: MakeNet) -> None:
    net = make_net(class_encoders=True)
    first = torch.randn(6, len(COLUMNS), generator=torch.Generator().manual_seed(4))
    second = first[:3] + 1.0
    parts = [
        (first, torch.tensor([GEMM, SOFTMAX, GEMM, SOFTMAX, SOFTMAX, GEMM])),
        (second, torch.tensor([SOFTMAX, GEMM, SOFTMAX])),
    ]
    group = encoder_groups()
    expected = torch.cat([first[[0, 2, 5]], second[[1]]])
    assert torch.equal(net.rows_of(int(group[GEMM]), parts), expected)
    assert net.rows_of(int(group[ATTENTION]), parts).shape == (0, len(COLUMNS))


def test_every_class_that_is_set_apart_has_tokens() -> None:
    assert sorted(set(encoder_groups().tolist())) == [0, 1, 2, 3, 4]
