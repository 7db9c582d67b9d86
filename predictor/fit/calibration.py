"""Interval calibration of a release from its held-out rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.calibrate.conformal import half_width, widening
from predictor.fit.crossval import NODE_OP_CLASS, HeldOut
from predictor.graph.ops import OPS

if TYPE_CHECKING:
    import pandas as pd

MIN_ROWS = 30
"""Fewest held-out rows on which a class gets a scale of its own."""
MIN_GROUPS = 3
"""Fewest held-out groups on which a phase gets a width of its own."""
FALLBACK_WIDENING = 0.35
FALLBACK_STEP = {"seen": 0.15, "unseen": 0.35}
"""Assumed where a recipe switches cross-validation off or has one group only."""
KINDS = {"unseen": "device", "seen": "model"}


def calibrate(held_out: HeldOut, level: float) -> dict[str, Any]:
    """Widenings by op class for isolated and in-step kernels, half-widths by phase for steps."""
    out: dict[str, Any] = {"level": level, "isolated": {}, "in_step": {}, "step": {}}
    for name, kind in KINDS.items():
        kernels = _of_kind(held_out.kernels, kind)
        if not kernels.empty:
            kernels = kernels.assign(op_class=[OPS[o].op_class for o in kernels["op"]])
        ops = _of_kind(held_out.ops, kind)
        if not ops.empty:
            classes = [NODE_OP_CLASS.get(c, c.removeprefix("other_")) for c in ops["node_class"]]
            ops = ops.assign(op_class=classes)
        out["isolated"][name] = _by_class(kernels, level)
        enough = len(ops) >= MIN_ROWS or len(kernels) < MIN_ROWS
        out["in_step"][name] = _by_class(ops, level) if enough else dict(out["isolated"][name])
        # without a step to tell, one is as unsure as its kernels, whose errors may go together
        unsure = max(FALLBACK_STEP[name], 0.0 if enough else out["isolated"][name]["default"])
        out["step"][name] = _by_phase(_of_kind(held_out.steps, kind), level, unsure)
    for scales in (out["isolated"], out["in_step"], out["step"]):
        _unseen_at_least_seen(scales)
    return out


def _unseen_at_least_seen(scales: dict[str, dict[str, float]]) -> None:
    """A device never seen is never surer than a seen one: few folds can say otherwise by luck."""
    seen, unseen = scales["seen"], scales["unseen"]
    for key in seen.keys() & unseen.keys():
        unseen[key] = max(unseen[key], seen[key])


def _of_kind(rows: pd.DataFrame, kind: str) -> pd.DataFrame:
    return rows if rows.empty else rows[rows["fold_kind"] == kind]


def _by_class(rows: pd.DataFrame, level: float) -> dict[str, float]:
    if len(rows) < MIN_ROWS:
        return {"default": FALLBACK_WIDENING}
    found = {"default": _widening(rows, level)}
    for op_class, group in rows.groupby("op_class"):
        if len(group) >= MIN_ROWS:
            found[str(op_class)] = _widening(group, level)
    return found


def _widening(rows: pd.DataFrame, level: float) -> float:
    log = {
        c: np.log(rows[c].to_numpy(dtype=float)) for c in ("measured_us", "lower_us", "upper_us")
    }
    return widening(
        log["measured_us"], log["lower_us"], log["upper_us"], rows["fold"].tolist(), level
    )


def _by_phase(rows: pd.DataFrame, level: float, fallback: float) -> dict[str, float]:
    found = {"total": fallback}
    if rows.empty:
        return found
    for phase, group in rows.groupby("phase"):
        if phase != "total" and group["fold"].nunique() < MIN_GROUPS:
            continue  # too few groups to speak for a new one: the total's width serves
        residual = np.log(
            group["measured_us"].to_numpy(dtype=float) / group["predicted_us"].to_numpy(dtype=float)
        )
        found[str(phase)] = half_width(residual, group["fold"].tolist(), level)
    return found
