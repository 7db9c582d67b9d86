"""Logarithms that stay finite."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def log1(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural logarithm, of 1 below 1."""
    return np.asarray(np.log(np.maximum(x, 1.0)))
