"""Load of the measured rank under the publisher's routings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.traces.sources.aiconfigurator_routing import is_known, rank_load


def load(distribution, tokens, topk=8, experts=256, ranks=8):
    columns = {"tokens": tokens, "topk": topk, "experts": experts, "ranks": ranks}
    pairs, active = rank_load({k: np.array([v]) for k, v in columns.items()}, distribution)
    return int(pairs[0]), int(active[0])


def test_names():
    assert all(map(is_known, ("balanced", "uniform", "power_law_1.2", "power_law_1.01_eplb")))
    assert not any(map(is_known, ("", "zipf", "power_law_", "power_law_1.2_x")))


def test_even_routing():
    assert load("balanced", 1024) == (1024, 32)  # 1024 * 8 / 8 pairs on 256 / 8 experts
    assert load("balanced", 1) == (1, 1)
    assert load("uniform", 64, ranks=64) == (8, 4)
    assert load("power_law_1.2_eplb", 1024, experts=288) == (1024, 36)


def test_one_rank_gets_every_pair():
    for alpha in ("1.01", "1.2", "1.0"):
        assert load(f"power_law_{alpha}", 1024, ranks=1)[0] == 8192


def test_skew_grows_with_the_ranks_and_the_exponent():
    over = [load("power_law_1.2", 16384, ranks=r)[0] / (16384 * 8 / r) for r in (1, 8, 64, 256)]
    assert over == sorted(over)
    assert over[-1] > 10
    assert load("power_law_1.2", 16384)[0] > load("power_law_1.01", 16384)[0] > 16384


@given(
    tokens=st.integers(1, 4096), topk=st.integers(1, 8), ranks=st.sampled_from([1, 2, 8, 32]),
    alpha=st.sampled_from(["0.6", "1.01", "1.2", "1.9"]),
)  # fmt: skip
def test_loads_are_possible(tokens, topk, ranks, alpha):
    pairs, active = load(f"power_law_{alpha}", tokens, topk, 64, ranks)
    assert 1 <= active <= min(64 // ranks, pairs)
    assert pairs <= tokens * topk
    assert pairs >= tokens * topk // ranks
    assert pairs <= active * tokens + 64  # no expert gets more than all tokens (rounding aside)


def test_rows_are_answered_in_their_order_and_repeat():
    columns = {
        "tokens": np.array([1024, 16, 1024]), "topk": np.array([8, 8, 8]),
        "experts": np.array([256, 256, 256]), "ranks": np.array([8, 8, 8]),
    }  # fmt: skip
    pairs, active = rank_load(columns, "power_law_1.01")
    assert pairs[0] == pairs[2] != pairs[1]
    assert (pairs[0], active[0]) == load("power_law_1.01", 1024)


@pytest.mark.parametrize("bad", [{"ranks": 3}, {"tokens": 0}, {"experts": -1}])
def test_impossible_layers_have_no_load(bad):
    assert load("power_law_1.2", **{"tokens": 8, **bad}) == (-1, -1)
