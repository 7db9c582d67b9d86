"""Draws: so many rows, out of half of the groups, never more than there are."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.fit.transfer_draws import draw

GROUPS = np.repeat([f"g{i}" for i in range(10)], 4)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_spread_draws_take_a_row_of_each_group(k: int) -> None:
    found = draw(GROUPS, k, rng())
    assert found is not None
    assert len(found.index_K) == len(found.groups) == k
    assert found.groups == set(GROUPS[found.index_K])


def test_half_of_the_groups_at_most_are_used_up() -> None:
    found = draw(GROUPS, 20, rng())
    assert found is not None
    assert len(set(found.index_K)) == 20
    assert len(found.groups) == 5


def test_more_than_half_of_the_rows_is_no_draw() -> None:
    assert draw(GROUPS, 21, rng()) is None


def test_one_group_leaves_nothing_to_score() -> None:
    assert draw(np.repeat("only", 8), 1, rng()) is None


def test_unequal_groups_may_not_hold_enough() -> None:
    names = np.array(["big"] * 16 + ["small", "tiny", "least"])
    drawn = [draw(names, 9, rng(seed)) for seed in range(20)]
    assert any(d is None for d in drawn)
    assert all("big" in d.groups for d in drawn if d is not None)


def test_a_timer_reads_one_group_after_another() -> None:
    found = draw(GROUPS, 6, rng(), spread=False)
    assert found is not None
    assert len(found.groups) == 2
    assert sorted(np.unique(GROUPS[found.index_K], return_counts=True)[1]) == [2, 4]


def test_nothing_drawn_uses_no_group() -> None:
    found = draw(GROUPS, 0, rng())
    assert found is not None
    assert not found.groups and not len(found.index_K)


def test_the_same_seed_draws_the_same_rows() -> None:
    first, again = draw(GROUPS, 5, rng(3)), draw(GROUPS, 5, rng(3))
    assert first is not None and again is not None
    assert first.index_K.tolist() == again.index_K.tolist()
