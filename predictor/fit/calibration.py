"""Interval calibration of a release from its held-out rows.

Scales by cell, coarse to fine (`predictor.nn.interval_scales`), shrunk towards the cell around them
by how many groups speak (`predictor.calibrate.cells`). How much of the model's own quantiles
counts, and how far a kernel outside of training widens its interval, is what gives the smaller
interval score on groups that the scales were not fitted on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from predictor.calibrate.cells import interval_score, nested_scales
from predictor.fit.crossval import NODE_OP_CLASS, HeldOut
from predictor.fit.interval_facts import device_kinds, step_facts
from predictor.graph.ops import OPS
from predictor.nn.interval_scales import (
    BAND,
    KERNEL_ROOT,
    OUTSIDE,
    STEP_ROOT,
    finest,
    kernel_levels,
    step_levels,
)

if TYPE_CHECKING:
    import pandas as pd

Floats: TypeAlias = NDArray[np.float64]
Names: TypeAlias = NDArray[np.str_]
MIN_ROWS = 30
"""Fewest held-out rows on which a cell of kernels gets a scale of its own."""
MIN_STEPS = 10
"""Fewest held-out steps on which a cell of steps does."""
MIN_GROUPS = 3
"""Fewest held-out groups on which a phase gets widths of its own, and a choice is made."""
SHRINKAGE = {"kernel": 3.0, "step": 1.0}
"""Groups' worth of weight of the cell around a cell."""
BANDS: tuple[float, ...] = (1.0, 0.5, 0.0)
SLOPES: tuple[float, ...] = (0.0, 0.02, 0.05, 0.1, 0.2)
CHUNKS = 5
"""Groups are put together to so many in a choice."""
MOST_ROWS, CHOICE_ROWS = 3000, 300
"""Rows of one group and op that scales, and that a choice, look at: groups count alike anyway."""
FALLBACK_WIDENING = 0.35
FALLBACK_STEP = {"seen": 0.15, "unseen": 0.35}
"""Assumed where a recipe switches cross-validation off or has one group only."""
KINDS = {"unseen": "device", "seen": "model"}
ALONE = "isolated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Rows of one context on devices seen or unseen; log times."""

    residual: Floats
    """log(measured / predicted)"""
    below: Floats
    """How far the model's own interval reaches below its prediction."""
    above: Floats
    groups: Names
    outside: Floats
    levels: Sequence[Names]

    def __len__(self) -> int:
        return len(self.residual)

    def take(self, at: NDArray[Any]) -> Residuals:
        """Some of the rows."""
        return Residuals(
            residual=self.residual[at], below=self.below[at], above=self.above[at],
            groups=self.groups[at], outside=self.outside[at],
            levels=[names[at] for names in self.levels],
        )  # fmt: skip

    def scores(self, band: float, slope: float) -> Floats:
        """Signed distance outside of the interval, in log time."""
        under, over = -self.residual - band * self.below, self.residual - band * self.above
        return np.asarray(np.maximum(under, over) - slope * self.outside)


def calibrate(held_out: HeldOut, level: float) -> dict[str, Any]:
    """Scales of isolated and in-step kernels and of steps, for devices seen and unseen."""
    alone, inside = kernels_by_context(held_out)
    steps = held_out.steps
    isolated = _kernel_scales({name: _of_kind(alone, k) for name, k in KINDS.items()}, level)
    in_step = _kernel_scales({name: _of_kind(inside, k) for name, k in KINDS.items()}, level)
    out: dict[str, Any] = {"level": level, "isolated": isolated, "in_step": {}, "step": {}}
    for name, kind in KINDS.items():
        enough = len(_of_kind(inside, kind)) >= MIN_ROWS or len(_of_kind(alone, kind)) < MIN_ROWS
        out["in_step"][name] = in_step[name] if enough else dict(isolated[name])
        # without a step to tell, one is as unsure as its kernels, whose errors may go together
        unsure = max(FALLBACK_STEP[name], 0.0 if enough else isolated[name][KERNEL_ROOT])
        out["step"][name] = _step_scales(_of_kind(steps, kind), level, unsure)
    for scales in (out["isolated"], out["in_step"], out["step"]):
        _unseen_at_least_seen(scales)
    return out


def _unseen_at_least_seen(scales: dict[str, dict[str, float]]) -> None:
    """A device never seen is never surer than a seen one: few folds can say otherwise by luck."""
    seen, unseen = scales["seen"], scales["unseen"]
    if OUTSIDE not in seen or unseen.get(BAND) not in (None, seen.get(BAND)):
        return  # assumed ones, or of other intervals that they widen: they do not compare
    for key in seen.keys() & unseen.keys():
        unseen[key] = max(unseen[key], seen[key])


def _of_kind(rows: pd.DataFrame, kind: str) -> pd.DataFrame:
    return rows if rows.empty else rows[rows["fold_kind"] == kind]


def kernels_by_context(held_out: HeldOut) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Kernels alone, and kernels and ops inside steps, with their op class."""
    import pandas as pd

    kernels, ops = held_out.kernels, held_out.ops
    parts = []
    if len(kernels):
        kernels = kernels.assign(op_class=[OPS[o].op_class for o in kernels["op"]])
        parts.append(kernels[kernels["context"] != ALONE])
        kernels = kernels[kernels["context"] == ALONE]
    if len(ops):
        classes = [NODE_OP_CLASS.get(c, c.removeprefix("other_")) for c in ops["node_class"]]
        parts.append(ops.assign(op_class=classes, op=ops["node_class"]))
    filled = [part for part in parts if len(part)]
    return kernels, pd.concat(filled, ignore_index=True) if filled else pd.DataFrame()


def _kernel_scales(rows: Mapping[str, pd.DataFrame], level: float) -> dict[str, dict[str, float]]:
    """Scales of one context; the share of the model's quantiles is one for seen and unseen."""
    enough = {
        name: frame.iloc[_thinned(frame, MOST_ROWS)]
        for name, frame in rows.items() if len(frame) >= MIN_ROWS
    }  # fmt: skip
    there = {name: _kernel_residuals(frame) for name, frame in enough.items()}
    found: dict[str, dict[str, float]] = {name: {KERNEL_ROOT: FALLBACK_WIDENING} for name in rows}
    if not there:
        return found
    fewer = {n: part.take(_thinned(enough[n], CHOICE_ROWS)) for n, part in there.items()}
    band = _best_band(list(fewer.values()), level)
    for name, part in there.items():
        slope = _best_slope(fewer[name], level, KERNEL_ROOT, band)
        found[name] = {
            **nested_scales(
                part.scores(band, slope), part.groups, KERNEL_ROOT, part.levels, level,
                min_rows=MIN_ROWS, shrinkage=SHRINKAGE["kernel"],
            ),
            BAND: band, OUTSIDE: slope,
        }  # fmt: skip
    return found


def _kernel_residuals(rows: pd.DataFrame) -> Residuals:
    measured, lower, mid, upper = (
        np.log(rows[f"{c}_us"].to_numpy(dtype=float))
        for c in ("measured", "lower", "predicted", "upper")
    )
    return Residuals(
        residual=measured - mid, below=mid - lower, above=upper - mid,
        groups=rows["group"].to_numpy(dtype=np.str_),
        outside=rows["outside"].to_numpy(dtype=float), levels=kernel_names(rows),
    )  # fmt: skip


def kernel_names(rows: pd.DataFrame) -> list[Names]:
    """(N,) names of the scales of kernel rows, coarse to fine."""
    return kernel_levels(
        rows["op_class"].to_numpy(dtype=np.str_), device_kinds(rows["device"]),
        rows["predicted_us"].to_numpy(dtype=float), rows["op"].to_numpy(dtype=np.str_),
    )  # fmt: skip


def _thinned(rows: pd.DataFrame, most: int) -> NDArray[np.int64]:
    """Rows of which a group and op has at most so many, spread over the table."""
    at = rows.reset_index(drop=True).groupby(["group", "op"])
    order, size = at.cumcount().to_numpy(), at["op"].transform("size").to_numpy()
    step = np.maximum(size // most, 1)
    return np.flatnonzero((order % step == 0) & (order // step < most))


def _step_scales(rows: pd.DataFrame, level: float, fallback: float) -> dict[str, float]:
    found = {STEP_ROOT: fallback}
    if rows.empty:
        return found
    whole = _step_residuals(rows[rows["phase"] == STEP_ROOT])
    slope = _best_slope(whole, level, STEP_ROOT, 1.0) if len(whole) else 0.0
    for phase in (STEP_ROOT, *sorted({*rows["phase"]} - {STEP_ROOT})):
        part = _step_residuals(rows[rows["phase"] == phase])
        if not len(part) or (phase != STEP_ROOT and len(np.unique(part.groups)) < MIN_GROUPS):
            continue  # too few groups to speak for a new one: the total's widths serve
        found |= nested_scales(
            part.scores(1.0, slope), part.groups, phase, part.levels[1:], level,
            min_rows=MIN_STEPS, shrinkage=SHRINKAGE["step"],
        )  # fmt: skip
    return {**{name: max(scale, 0.0) for name, scale in found.items()}, OUTSIDE: slope}


def _step_residuals(rows: pd.DataFrame) -> Residuals:
    nothing = np.zeros(len(rows))
    return Residuals(
        residual=np.log((rows["measured_us"] / rows["predicted_us"]).to_numpy(dtype=float)),
        below=nothing, above=nothing, groups=rows["group"].to_numpy(dtype=np.str_),
        outside=rows["outside"].to_numpy(dtype=float),
        levels=step_levels(rows["phase"].to_numpy(dtype=np.str_), step_facts(rows)),
    )  # fmt: skip


def _best_band(parts: Sequence[Residuals], level: float) -> float:
    judged = [part for part in parts if len(np.unique(part.groups)) >= MIN_GROUPS]
    if not judged:
        return BANDS[0]
    costs = [sum(_cost(part, level, KERNEL_ROOT, band, 0.0) for part in judged) for band in BANDS]
    return BANDS[int(np.argmin(costs))]


def _best_slope(part: Residuals, level: float, root: str, band: float) -> float:
    if len(np.unique(part.groups)) < MIN_GROUPS or not (part.outside > 0).any():
        return 0.0
    costs = [_cost(part, level, root, band, slope) for slope in SLOPES]
    return SLOPES[int(np.argmin(costs))]


def _cost(part: Residuals, level: float, root: str, band: float, slope: float) -> float:
    """Mean interval score on groups that the scales were not fitted on, every group alike."""
    names, place, count = np.unique(part.groups, return_inverse=True, return_counts=True)
    chunk = (np.arange(len(names)) % CHUNKS)[place]
    step = root == STEP_ROOT
    cost = np.zeros(len(part))
    for i in np.unique(chunk):
        held, rest = part.take(chunk == i), part.take(chunk != i)
        scales = nested_scales(
            rest.scores(band, slope), rest.groups, root, rest.levels, level,
            min_rows=MIN_STEPS if step else MIN_ROWS,
            shrinkage=SHRINKAGE["step" if step else "kernel"],
        )  # fmt: skip
        extra = finest(scales, root, held.levels) + slope * held.outside
        below, above = (np.maximum(band * own + extra, 0.0) for own in (held.below, held.above))
        cost[chunk == i] = interval_score(held.residual, below, above, level)
    return float((cost / count[place]).sum() / len(names))
