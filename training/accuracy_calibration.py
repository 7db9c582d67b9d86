"""Intervals judged: coverage and interval score, beside an interval of one constant width.

Interval score of Gneiting and Raftery, "Strictly proper scoring rules, prediction, and estimation"
(2007), section 6.2, of log times: the width, plus 2 / (1 - level) times how far the measurement
lies outside. A factor of 1.1 between the ends is a width of 0.095; smaller is better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from accuracy_suites import Kind, Scored, of_kind, predicted
from numpy.typing import NDArray

LEVEL = 0.9
"""Nominal coverage of `lower_us` to `upper_us`."""

Floats = NDArray[np.float64]


def interval_scores(measured_us: Floats, lower_us: Floats, upper_us: Floats) -> Floats:
    """Interval score of every row, in log time."""
    x, low, high = np.log(measured_us), np.log(lower_us), np.log(upper_us)
    outside = np.maximum(low - x, 0.0) + np.maximum(x - high, 0.0)
    return np.asarray(high - low + 2.0 / (1.0 - LEVEL) * outside)


def inside(rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Whether each measurement lies in its interval."""
    return rows["measured_us"].between(rows["lower_us"], rows["upper_us"]).to_numpy()


def scores_of(rows: pd.DataFrame) -> Floats:
    """Interval scores of predicted rows."""
    return interval_scores(
        *(rows[f"{c}_us"].to_numpy(dtype=float) for c in ("measured", "lower", "upper"))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantWidth:
    """Prediction times and divided by one factor, as wide as covers what the intervals cover."""

    half: float | None
    """Logarithm of the factor; None where the rows hold one by group (`constant_half`)."""
    chosen_on: str
    """Part of the rows that it was chosen on."""

    def half_of(self, rows: pd.DataFrame) -> Floats:
        """Logarithm of each row's factor."""
        if self.half is None:
            return rows["constant_half"].to_numpy(dtype=float)
        return np.full(len(rows), self.half)

    def inside(self, rows: pd.DataFrame) -> NDArray[np.bool_]:
        """Whether each measurement lies in the constant interval."""
        return np.asarray(np.abs(rows["log_ratio"].to_numpy(dtype=float)) <= self.half_of(rows))

    def scores(self, rows: pd.DataFrame) -> Floats:
        """Interval scores with this interval."""
        mid = rows["predicted_us"].to_numpy(dtype=float)
        factor = np.exp(self.half_of(rows))
        measured = rows["measured_us"].to_numpy(dtype=float)
        return interval_scores(measured, mid / factor, mid * factor)


def constant_width(scored: Scored, kind: Kind) -> ConstantWidth:
    """The constant width that covers as many development rows as the intervals do.

    Rows of a cross-validation bring the width that covers the nominal share of their source's other
    groups. Where a split develops in turn and has no such rows it is chosen on the tested rows
    themselves, which is in its favour.
    """
    develop = predicted(of_kind(scored.development, kind))
    tested = predicted(of_kind(scored.tested, kind))
    if "constant_half" in tested.columns and bool(tested["constant_half"].notna().all()):
        return ConstantWidth(half=None, chosen_on="other groups")
    rows, part = (develop, "development") if len(develop) else (tested, scored.part)
    off = np.sort(np.abs(rows["log_ratio"].to_numpy(dtype=float)))
    covered = int(inside(rows).sum())
    half = float(off[covered - 1]) if covered else 0.0
    return ConstantWidth(half=half, chosen_on=part)
