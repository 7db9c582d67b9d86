"""Conformal quantiles: worked by hand, and covering what they promise on groups held out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.calibrate.conformal import grouped_quantile


def test_one_group_takes_the_raised_quantile() -> None:
    # 10 scores, level 0.5 raised to 0.5 * 1.1 = 0.55: the sixth covers 0.6 of the weight
    assert grouped_quantile(np.arange(10.0), ["a"] * 10, 0.5) == 5.0
    # level 0.9 raised to 0.99: only the last covers it
    assert grouped_quantile(np.arange(10.0), ["a"] * 10, 0.9) == 9.0


def test_every_group_weighs_the_same() -> None:
    scores = np.array([1.0, 1.0, 1.0, 1.0, 5.0])
    groups = ["many"] * 4 + ["one"]
    # each of the four weighs 1/8, the one 1/2: 0.4 * 1.2 = 0.48 is reached within the four,
    # 0.5 * 1.2 = 0.6 only by the one; unweighted, 0.6 would be reached within the four
    assert grouped_quantile(scores, groups, 0.4) == 1.0
    assert grouped_quantile(scores, groups, 0.5) == 5.0
    assert grouped_quantile(scores, ["same"] * 5, 0.5) == 1.0


def test_order_of_rows_and_names_of_groups_do_not_matter() -> None:
    scores = np.array([3.0, -1.0, 2.0, 0.5, 7.0, 0.0])
    groups = np.array([1, 1, 2, 2, 2, 3])
    order = np.array([5, 0, 3, 1, 4, 2])
    for level in (0.1, 0.5, 0.8, 0.9):
        one = grouped_quantile(scores, groups.tolist(), level)
        assert grouped_quantile(scores[order], groups[order].tolist(), level) == one
        assert grouped_quantile(scores, [f"g{g}" for g in groups], level) == one


@settings(deadline=None)
@given(
    scores=st.lists(st.floats(-5, 5), min_size=1, max_size=40),
    level=st.floats(0.05, 0.99),
    data=st.data(),
)
def test_result_is_a_score_that_covers_the_level_and_grows_with_it(scores, level, data):
    groups = [data.draw(st.integers(0, 3)) for _ in scores]
    values = np.array(scores)
    found = grouped_quantile(values, groups, level)
    assert found in values
    names = sorted(set(groups))
    shares = [np.mean(values[np.array(groups) == g] <= found) for g in names]
    assert np.mean(shares) >= min(level, 1.0) - 1e-9  # mean over groups, each the same
    assert grouped_quantile(values, groups, min(level + 0.1, 1.0)) >= found


def test_a_level_of_one_takes_the_largest() -> None:
    assert grouped_quantile(np.array([2.0, 9.0, 4.0]), ["a", "b", "c"], 1.0) == 9.0


def test_no_scores_are_an_error() -> None:
    with pytest.raises(ValueError, match="no scores"):
        grouped_quantile(np.array([]), [], 0.9)


def test_rows_and_groups_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="2 groups for 3 scores"):
        grouped_quantile(np.zeros(3), ["a", "b"], 0.9)


@pytest.mark.parametrize("level", [0.0, -0.1, 1.1])
def test_level_is_a_share(level: float) -> None:
    with pytest.raises(ValueError, match="level"):
        grouped_quantile(np.zeros(3), ["a", "b", "c"], level)


def test_a_score_that_is_not_a_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="finite"):
        grouped_quantile(np.array([0.0, np.nan]), ["a", "b"], 0.9)


def coverage_on_new_groups(level: float, *, groups: int, rows: int, seed: int) -> float:
    """Each group shifts its residuals by its own amount, as a device does."""
    rng = np.random.default_rng(seed)
    shift = rng.normal(0.0, 0.15, groups)
    residual = shift[:, None] + rng.normal(0.0, 0.1, (groups, rows))
    half = groups // 2
    names = np.repeat(np.arange(half), rows).tolist()
    width = grouped_quantile(np.abs(residual[:half].ravel()), names, level)
    return float((np.abs(residual[half:]) <= width).mean())


@pytest.mark.parametrize("level", [0.8, 0.9])
def test_coverage_on_groups_held_out_is_near_the_level(level: float) -> None:
    found = [coverage_on_new_groups(level, groups=60, rows=40, seed=s) for s in range(20)]
    assert np.mean(found) == pytest.approx(level, abs=0.02)
