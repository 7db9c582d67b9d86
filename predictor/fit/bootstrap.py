"""Bootstrap intervals of errors whose rows come in groups (a device and a model together)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DRAWS = 2000
LEVEL = 0.9


def grouped_mean_interval(
    values: NDArray[np.float64], groups: Sequence[object], *, seed: int = 0
) -> tuple[float, float]:
    """90% percentile interval of the mean when whole groups are drawn with replacement."""
    names, inverse = np.unique([str(g) for g in groups], return_inverse=True)
    sums = np.bincount(inverse, weights=values)
    counts = np.bincount(inverse)
    draws = np.random.default_rng(seed).integers(0, len(names), size=(DRAWS, len(names)))
    means = sums[draws].sum(axis=1) / counts[draws].sum(axis=1)
    edge = (1.0 - LEVEL) / 2.0
    low, high = np.quantile(means, [edge, 1.0 - edge])
    return float(low), float(high)
