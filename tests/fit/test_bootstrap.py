"""Bootstrap intervals of errors whose rows come in groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.fit.bootstrap import grouped_mean_interval


@settings(deadline=None, max_examples=50)
@given(groups=st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=6), min_size=1, max_size=12))
def test_interval_lies_within_the_means_of_the_groups(groups):
    values = np.array([v for group in groups for v in group])
    names = [i for i, group in enumerate(groups) for _ in group]
    low, high = grouped_mean_interval(values, names)
    means = [float(np.mean(group)) for group in groups]
    assert min(means) - 1e-9 <= low <= high <= max(means) + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_interval_holds_the_mean_and_narrows_with_more_groups(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def interval(groups: int) -> tuple[float, float, float]:
        values = np.abs(rng.normal(0.1, 0.05, groups * 4))
        low, high = grouped_mean_interval(values, np.repeat(np.arange(groups), 4).tolist())
        return low, float(values.mean()), high

    few, many = interval(8), interval(200)
    for low, mean, high in (few, many):
        assert low < mean < high
    assert many[2] - many[0] < (few[2] - few[0]) / 2


def test_one_group_or_equal_rows_have_no_spread() -> None:
    one = grouped_mean_interval(np.array([0.1, 0.3]), ["a", "a"])
    assert one == pytest.approx((0.2, 0.2))
    assert grouped_mean_interval(np.full(6, 0.4), list("aabbcc")) == pytest.approx((0.4, 0.4))


def test_rows_of_a_group_go_together() -> None:
    # two groups at 0 and 1: a draw of two groups has mean 0, 0.5 or 1, whatever the row count
    values = np.repeat([0.0, 1.0], 500)
    low, high = grouped_mean_interval(values, ["a"] * 500 + ["b"] * 500)
    assert (low, high) == (0.0, 1.0)
    apart = grouped_mean_interval(values, list(range(1000)))
    assert 0.46 < apart[0] < 0.5 < apart[1] < 0.54


def test_same_seed_same_interval() -> None:
    values, names = np.linspace(0, 1, 20), [i // 4 for i in range(20)]
    assert grouped_mean_interval(values, names) == grouped_mean_interval(values, names)
    mixed = np.random.default_rng(0).random(20)
    assert grouped_mean_interval(mixed, names, seed=1) != grouped_mean_interval(mixed, names)
