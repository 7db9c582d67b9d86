"""Conformal intervals in log time, from residuals of grouped cross-validation.

Arrays only. A group is a device with its twins (for devices never seen) or a model family (for
devices seen): the interval must hold on a new group, so every group weighs the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def grouped_quantile(
    scores: Floats, groups: Sequence[object] | NDArray[np.str_], level: float
) -> float:
    """Quantile of `scores` at `level`, every group with the same total weight.

    The level is raised to `level * (1 + 1 / n)` with n rows, as split conformal prediction does
    (Vovk et al. 2005), capped at the largest score.

    Raises:
        ValueError: no scores, a score that is not finite, another number of groups, or a level
            outside (0, 1].
    """
    if len(scores) == 0:
        raise ValueError("no scores to calibrate on")
    if len(groups) != len(scores):
        raise ValueError(f"{len(groups)} groups for {len(scores)} scores")
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite: leave rows without a measured value out")
    if not 0.0 < level <= 1.0:
        raise ValueError(f"level {level} is not in (0, 1]")
    # an array of names stays one: making texts of a million rows takes longer than sorting them
    keys = groups if isinstance(groups, np.ndarray) else np.array([str(g) for g in groups])
    names, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    weight = 1.0 / (counts[inverse] * len(names))
    order = np.argsort(scores)
    cumulative = np.cumsum(weight[order])
    target = min(level * (1.0 + 1.0 / len(scores)), 1.0)
    index = int(np.searchsorted(cumulative, target - 1e-12))
    return float(scores[order][min(index, len(scores) - 1)])
