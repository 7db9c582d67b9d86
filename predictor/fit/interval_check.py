"""Intervals of held-out rows from scales that their own group did not fit.

What a release's intervals cover on a device never seen cannot be read off the rows that its scales
were fitted on. Here the groups take turns: scales are fitted on the others, and applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.calibrate.cells import interval_score
from predictor.calibrate.conformal import grouped_quantile
from predictor.fit.calibration import KINDS, calibrate, kernel_names, kernels_by_context
from predictor.fit.crossval import HeldOut
from predictor.fit.interval_facts import step_facts
from predictor.nn.interval_scales import step_half_width, widened

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

PARTS = 5
"""Parts that the groups of a kind are put into; each is judged by scales fitted on the others."""


def judged(held_out: HeldOut, level: float) -> dict[str, pd.DataFrame]:
    """Held-out rows with intervals that their own group did not fit.

    Args:
        held_out: rows of all folds.
        level: share of the rows that the intervals are to cover.

    Returns:
        `kernels` (alone, and inside steps) and `steps`, with `below` and `above` (how far the
        interval reaches, log time), `covered`, `score`, and `constant_half` (log time),
        `constant_covered`, `constant_score` of one width for all rows of a source, fitted on the
        source's other groups (NaN where it has no others).
    """
    import pandas as pd

    held_out = _in_turns(held_out)
    alone, inside = kernels_by_context(held_out)
    found: dict[str, list[pd.DataFrame]] = {"kernels": [], "steps": []}
    for part in range(PARTS):
        scales = calibrate(_without(held_out, part), level)
        for name, kind in KINDS.items():
            for context, rows in (("isolated", alone), ("in_step", inside)):
                of = _of(rows, kind, part)
                if len(of):
                    found["kernels"].append(_kernels(of, scales[context][name]))
            of = _of(held_out.steps, kind, part)
            if len(of):
                found["steps"].append(_steps(of, scales["step"][name]))
    out = {}
    for name, parts in found.items():
        rows = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
        out[name] = _scored(rows, level) if len(rows) else rows
    return out


def _in_turns(held_out: HeldOut) -> HeldOut:
    """The rows with a column `part`: the groups of a kind in turn, in all tables alike."""
    tables = (held_out.kernels, held_out.ops, held_out.steps)
    names = sorted({
        (str(kind), str(group))
        for rows in tables if len(rows)
        for kind, group in rows[["fold_kind", "group"]].drop_duplicates().itertuples(index=False)
    })  # fmt: skip
    count: dict[str, int] = {}
    part: dict[str, int] = {}
    for kind, group in names:
        part[f"{kind} {group}"] = count.get(kind, 0) % PARTS
        count[kind] = count.get(kind, 0) + 1
    kernels, ops, steps = (
        rows.assign(part=(rows["fold_kind"] + " " + rows["group"]).map(part)) if len(rows) else rows
        for rows in tables
    )
    return HeldOut(kernels=kernels, ops=ops, steps=steps)


def _without(held_out: HeldOut, part: int) -> HeldOut:
    kernels, ops, steps = (
        rows[rows["part"] != part] if len(rows) else rows
        for rows in (held_out.kernels, held_out.ops, held_out.steps)
    )
    return HeldOut(kernels=kernels, ops=ops, steps=steps)


def _of(rows: pd.DataFrame, kind: str, part: int) -> pd.DataFrame:
    return rows[(rows["fold_kind"] == kind) & (rows["part"] == part)] if len(rows) else rows


def _kernels(rows: pd.DataFrame, scales: Mapping[str, float]) -> pd.DataFrame:
    log_time = np.log(rows[["lower_us", "predicted_us", "upper_us"]].to_numpy(dtype=float))
    log_time = widened(scales, log_time, kernel_names(rows), rows["outside"].to_numpy(dtype=float))
    mid = log_time[:, 1]
    return rows.assign(below=mid - log_time[:, 0], above=log_time[:, 2] - mid)


def _steps(rows: pd.DataFrame, scales: Mapping[str, float]) -> pd.DataFrame:
    half = step_half_width(
        scales, rows["phase"].to_numpy(dtype=np.str_), step_facts(rows),
        rows["outside"].to_numpy(dtype=float),
    )  # fmt: skip
    return rows.assign(below=half, above=half)


def _scored(rows: pd.DataFrame, level: float) -> pd.DataFrame:
    residual = np.log((rows["measured_us"] / rows["predicted_us"]).to_numpy(dtype=float))
    below, above = (rows[c].to_numpy(dtype=float) for c in ("below", "above"))
    constant = _constant(rows, np.abs(residual), level)
    known = np.isfinite(constant)
    constant_score = interval_score(residual, constant, constant, level)
    return rows.assign(
        source=_source(rows),
        covered=(residual >= -below) & (residual <= above),
        score=interval_score(residual, below, above, level),
        constant_half=constant,
        constant_covered=np.where(known, np.abs(residual) <= constant, np.nan),
        constant_score=np.where(known, constant_score, np.nan),
    )


def _constant(rows: pd.DataFrame, off: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    """(N,) half-width in log time: of the other groups of the same source and kind."""
    part = rows["part"].to_numpy()
    groups = rows["group"].to_numpy(dtype=np.str_)
    key = (rows["fold_kind"] + " " + _source(rows)).to_numpy(dtype=np.str_)
    out = np.full(len(rows), np.nan)
    for name in np.unique(key):
        for turn in range(PARTS):
            own = (key == name) & (part == turn)
            others = (key == name) & (part != turn)
            if own.any() and others.any():
                out[own] = grouped_quantile(off[others], groups[others], level)
    return out


def _source(rows: pd.DataFrame) -> pd.Series[str]:
    source: pd.Series[str] = rows["row_id"].str.partition(":")[0]
    return source
