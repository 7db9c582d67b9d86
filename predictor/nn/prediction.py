"""What a predictor returns for one kernel graph on one device: plain arrays, no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A latency with its interval, microseconds."""

    latency_us: float
    lower_us: float
    upper_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Kernel and step latencies of one kernel graph. Arrays have one entry a kernel (N)."""

    kernel_us: NDArray[np.float64]
    kernel_lower_us: NDArray[np.float64]
    kernel_upper_us: NDArray[np.float64]
    floor_us: NDArray[np.float64]
    """Physical floor: the larger of FLOPs / peak and bytes / peak bandwidth."""
    bound: NDArray[np.str_]
    """`compute`, `memory` or `launch`."""
    label: NDArray[np.str_]
    """`measured`, `learned`, `transferred`, `roofline` or `opaque`."""
    in_distribution: NDArray[np.bool_]
    phases: Mapping[str, Interval]
    """By phase present in the graph: device time or host time, whichever is later."""
    step: Interval
    correction: Mapping[str, float] | None = None
    """What each summary of the step adds to the log of its time (in `step` and `phases`), the
    largest first; None from a model that corrects nothing."""
    level: float = 0.9
    """Coverage that the intervals state."""
    warnings: tuple[str, ...] = ()
