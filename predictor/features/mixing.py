"""64-bit numbers scattered: the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: what tells streams of equal numbers apart."""


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection in which every bit of the input moves every bit of the output; 0 stays 0."""
    out = values.copy()
    out ^= out >> np.uint64(30)
    out *= np.uint64(0xBF58476D1CE4E5B9)
    out ^= out >> np.uint64(27)
    out *= np.uint64(0x94D049BB133111EB)
    out ^= out >> np.uint64(31)
    return out
