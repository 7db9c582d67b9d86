"""Interval scales of a release: which of them holds for a kernel or a whole step.

Scales stand under names that go from the coarse to the fine; the finest that a release has holds.

| scales of | names, coarse to fine |
|---|---|
| kernels | `default`, `matmul`, `matmul@gpu`, `matmul@gpu/s3`, `matmul@gpu/s3/linear` |
| steps | `total`, `total@gpu`, `total@gpu/wall`, `…/train`, `…/train/eager`; then the same of the
  phase, `forward`, … |

`s3` is the number of bounds of `SIZE_BOUNDS_US` that the predicted reading reaches, `wall` what the
step time is a measure of. `band` says which share of the model's own quantiles counts (1 where a
release does not tell), `outside` how much the logarithm of either end moves for each unit of
`predictor.nn.training_range.outside_range` (0 where it does not tell).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Names = NDArray[np.str_]
SIZE_BOUNDS_US: tuple[float, ...] = (10.0, 50.0, 200.0, 1e3, 1e4)
"""Between them launches, caches and memory take turns at setting the error."""
BAND, OUTSIDE = "band", "outside"
KERNEL_ROOT, STEP_ROOT = "default", "total"
WALL = "wall"
"""Measure of a step by the clock, not by adding kernels up."""


def kernel_levels(op_class: Names, kind: Names, reading_us: Floats, op: Names) -> list[Names]:
    """(N,) names by level, coarse to fine, below `default`."""
    with_kind = _joined(op_class, "@", kind)
    reached = np.searchsorted(SIZE_BOUNDS_US, reading_us, side="right")
    sized = _joined(with_kind, "/s", reached.astype(np.str_))
    return [op_class, with_kind, sized, _joined(sized, "/", op)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What tells one of G steps from another."""

    kind: Names
    """Of the device: `gpu`, `cpu`, …."""
    measure: Names
    mode: Names
    """`train` or `infer`."""
    execution: Names
    """`eager` or `compiled`."""


def step_levels(phase: Names, facts: StepFacts) -> list[Names]:
    """(G,) names by level, coarse to fine, below `total`: of one phase."""
    levels = [phase, _joined(phase, "@", facts.kind)]
    for finer in (facts.measure, facts.mode, facts.execution):
        levels.append(_joined(levels[-1], "/", finer))
    return levels


def _joined(left: Names, mark: str, right: Names) -> Names:
    return np.char.add(np.char.add(left.astype(np.str_), mark), right.astype(np.str_))


def finest(scales: Mapping[str, float], root: str, levels: Sequence[Names]) -> Floats:
    """(N,) the scale of the finest name that stands in `scales`; `root`'s where none does."""
    found = np.full(len(levels[0]), float(scales[root]))
    for level in levels:
        names, place = np.unique(level, return_inverse=True)
        values = np.array([float(scales.get(str(name), np.nan)) for name in names])
        own = values[place.reshape(-1)] if len(names) else found
        found = np.where(np.isfinite(own), own, found)
    return found


def step_half_width(
    scales: Mapping[str, float], phase: Names, facts: StepFacts, outside: Floats
) -> Floats:
    """(G,) half-widths in log time: of the whole, or of the phase where it has one of its own."""
    whole = np.full(len(phase), STEP_ROOT)
    levels = [*step_levels(whole, facts), *step_levels(phase, facts)]
    return finest(scales, STEP_ROOT, levels) + float(scales.get(OUTSIDE, 0.0)) * outside


def blended(seen: Floats, unseen: Floats, share: Floats) -> Floats:
    """Half-widths of steps of which a share of the time is in kernels never measured on the device.

    Errors of the two parts are taken to go together, so their half-widths add up by their time.
    """
    part = np.clip(share, 0.0, 1.0)
    return np.asarray((1.0 - part) * seen + part * unseen)


def widened(
    scales: Mapping[str, float],
    log_time_N3: Floats,
    levels: Sequence[Names],
    outside_N: Floats,
) -> Floats:
    """(N, 3) lower, mid and upper of log time with the scales applied; the mid stays between."""
    extra = finest(scales, KERNEL_ROOT, levels) + float(scales.get(OUTSIDE, 0.0)) * outside_N
    band = float(scales.get(BAND, 1.0))
    mid = log_time_N3[:, 1]
    if band == 1.0:  # as they stand, to the last bit
        below, above = log_time_N3[:, 0], log_time_N3[:, 2]
    else:
        below = mid + band * (log_time_N3[:, 0] - mid)
        above = mid + band * (log_time_N3[:, 2] - mid)
    lower, upper = np.minimum(below - extra, mid), np.maximum(above + extra, mid)
    return np.stack([lower, mid, upper], axis=1)
