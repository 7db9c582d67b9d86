"""Conformal scales by nested cells, each shrunk towards the one around it. Arrays only.

A cell speaks for itself by as much as it has groups (devices with their twins, model families):
one device with thousands of rows says little of the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from predictor.calibrate.conformal import Floats, grouped_quantile

Names = NDArray[np.str_]


def nested_scales(
    scores: Floats,
    groups: Names,
    root: str,
    levels: Sequence[Names],
    level: float,
    *,
    min_rows: int,
    shrinkage: float,
) -> dict[str, float]:
    """Quantile of the scores by cell, every group of a cell with the same weight.

    A cell with G groups takes `G / (G + shrinkage)` of its own quantile, the rest from the finest
    cell around it that has a scale.

    Args:
        scores: (N,) of conformal prediction.
        groups: (N,) group of each row.
        root: name of the cell of all rows.
        levels: (N,) names of the cells, coarse to fine, each inside one of the level before.
        level: share of the rows that a scale covers.
        min_rows: fewest rows of a cell with a scale of its own; one of all rows of the cell around
            has none.
        shrinkage: groups' worth of weight of the cell around.
    """
    found = {root: grouped_quantile(scores, groups, level)}
    around = np.full(len(scores), found[root])
    size = np.full(len(scores), len(scores))
    for names in levels:
        for name, at in _cells(names):
            if len(at) < min_rows or len(at) == size[at[0]]:
                continue  # too few, or no other rows than the cell around
            own = grouped_quantile(scores[at], groups[at], level)
            count = len(np.unique(groups[at]))
            scale = (count * own + shrinkage * around[at[0]]) / (count + shrinkage)
            found[name] = float(scale)
            around[at], size[at] = scale, len(at)
    return found


def _cells(names: Names) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Rows of every name."""
    values, place = np.unique(names, return_inverse=True)
    order = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place, minlength=len(values)))
    for name, at in zip(values, np.split(order, ends[:-1]), strict=True):
        yield str(name), at


def interval_score(log_residual: Floats, below: Floats, above: Floats, level: float) -> Floats:
    """(N,) interval score in log time of intervals that reach so far below and above the point.

    Gneiting and Raftery (2007), section 6.2: the width, and 2 / (1 - level) times how far the
    measurement lies outside.
    """
    missed = np.maximum(-below - log_residual, 0.0) + np.maximum(log_residual - above, 0.0)
    return np.asarray(below + above + 2.0 / (1.0 - level) * missed)
