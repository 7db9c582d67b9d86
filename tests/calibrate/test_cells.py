"""Scales by nested cells, worked by hand, and the interval score."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.calibrate.cells import interval_score, nested_scales


def test_a_cell_is_shrunk_towards_the_one_around_by_its_groups() -> None:
    # ten rows of score 0 in two groups of a cell, ten of score 1 in two of another
    scores = np.repeat([0.0, 1.0], 10)
    groups = np.tile(["a", "b"], 10)
    cell = np.repeat(["x", "y"], 10)
    found = nested_scales(scores, groups, "all", [cell], 0.9, min_rows=5, shrinkage=2.0)
    # of all rows 0.9 * 21 / 20 = 0.945 must be covered: 1; two groups against two
    assert found == {"all": 1.0, "x": 0.5, "y": 1.0}
    sharp = nested_scales(scores, groups, "all", [cell], 0.9, min_rows=5, shrinkage=0.0)
    assert sharp == {"all": 1.0, "x": 0.0, "y": 1.0}


def test_a_finer_cell_leans_on_the_finest_that_has_a_scale() -> None:
    scores = np.array([0.0] * 4 + [1.0] * 4 + [3.0] * 8)
    groups = np.full(16, "a")
    coarse = np.repeat(["x", "y"], 8)
    fine = np.array(["x1"] * 4 + ["x2"] * 4 + ["y1"] * 8)
    found = nested_scales(scores, groups, "all", [coarse, fine], 0.9, min_rows=4, shrinkage=1.0)
    assert found["x"] == (1.0 + 3.0) / 2
    assert found["x1"] == (0.0 + found["x"]) / 2
    assert "y1" not in found  # the rows of y, which speak for themselves already
    few = nested_scales(scores, groups, "all", [coarse, fine], 0.9, min_rows=5, shrinkage=1.0)
    assert set(few) == {"all", "x", "y"}


def test_the_interval_score_is_the_width_and_what_lies_outside() -> None:
    residual = np.array([0.0, 0.5, -0.3])
    below, above = np.full(3, 0.1), np.full(3, 0.2)
    found = interval_score(residual, below, above, 0.9)
    assert found == pytest.approx([0.3, 0.3 + 20 * 0.3, 0.3 + 20 * 0.2])
