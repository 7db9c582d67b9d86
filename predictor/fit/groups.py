"""Scored rows summarised: groups by device, target, mode, phase and op class, and whole steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.fit.bootstrap import grouped_mean_interval
from predictor.fit.metrics import ERRORS, errors
from predictor.fit.rows import baselines_of

if TYPE_CHECKING:
    import pandas as pd

ALL, TEST = "all", "test"
"""Over all devices, and over all rows of the test part."""
FITTED: tuple[str, ...] = ("gradient_boosting", "flops_law", "best_proxy")
"""Baselines that are fitted on the training part of the split."""


def summarise(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Groups by device (and over all devices), target, mode, phase and op class."""
    if rows.empty:
        return []
    out: list[dict[str, Any]] = []
    for frame in (rows, rows.assign(device=ALL)):
        out += _every(frame)
    tested = rows[rows["part"] == "test"]
    if len(tested) and len(tested) < len(rows):
        out += _every(tested.assign(device=TEST))
    return out


def _every(rows: pd.DataFrame) -> list[dict[str, Any]]:
    steps, kernels = (rows[rows["target"] == target] for target in ("step", "kernel"))
    out: list[dict[str, Any]] = []
    for part in (steps, steps.assign(mode=ALL), kernels, kernels.assign(op_class=ALL)):
        out += _groups(part)
    return out


def _groups(rows: pd.DataFrame) -> list[dict[str, Any]]:
    rows = rows.assign(one_part=np.where(rows["device"].isin([ALL, TEST]), "", rows["part"]))
    keys = ["device", "target", "mode", "phase", "op_class", "one_part"]
    found = []
    for (device, target, mode, phase, op_class, _), group in rows.groupby(keys, sort=True):
        if op_class == "":
            continue
        found.append({
            "device": device, "target": target, "op_class": op_class, "phase": phase,
            "mode": mode, "part": _only(group["part"]), **score_group(group),
        })  # fmt: skip
    return found


def _only(values: pd.Series[str]) -> str:
    names = values.unique().tolist()
    return names[0] if len(names) == 1 else "mixed"


def score_group(rows: pd.DataFrame) -> dict[str, Any]:
    """Errors, coverage and baselines of one group.

    `learned` is the mean share of the predicted time that the networks speak for, `n_trained` how
    many rows the checkpoint was trained on. A baseline is scored on the rows that have it (`n`),
    of which it may have learned from some (`n_fitted`); `own_mape` is the checkpoint's error on
    just the rows that have it.
    """
    measured = rows["measured_us"].to_numpy(dtype=float)
    predicted = rows["predicted_us"].to_numpy(dtype=float)
    good = np.isfinite(predicted)
    lower, upper = (rows[c].to_numpy(dtype=float) for c in ("lower_us", "upper_us"))
    inside = (measured >= lower) & (measured <= upper)
    fitted = rows["fitted"].to_numpy(dtype=bool)
    baselines = {}
    for name in baselines_of(rows):
        values = rows[f"{name}_us"].to_numpy(dtype=float)
        have = np.isfinite(values) & (values > 0)
        if have.any():
            both = have & good
            own = errors(predicted[both], measured[both])["mape"] if both.any() else None
            baselines[name] = {
                "n": int(have.sum()), **errors(values[have], measured[have]), "own_mape": own,
                "n_fitted": int((have & fitted).sum()) if name in FITTED else 0,
            }  # fmt: skip
    learned = rows["learned"].to_numpy(dtype=float)[good]
    return {
        "n": len(rows), "n_predicted": int(good.sum()),
        "n_trained": int(rows["trained"].sum()),
        **(errors(predicted[good], measured[good]) if good.any() else dict.fromkeys(ERRORS)),
        "learned": float(learned.mean()) if good.any() else None,
        "interval90_coverage": float(inside[good].mean()) if good.any() else None,
        "interval90_width": float(np.median(upper[good] / lower[good])) if good.any() else None,
        "baselines": baselines,
    }  # fmt: skip


def step_summary(rows: pd.DataFrame) -> dict[str, Any]:
    """Step errors of the test part (all rows where nothing is held out), with bootstrap intervals.

    `part` says which of the two. The interval draws (device, model) groups with replacement; the
    last entry is the difference to NeuSight's published predictions on the same rows (negative:
    smaller error here).
    """
    if rows.empty:
        return {}
    steps = rows[(rows["target"] == "step") & rows["predicted_us"].notna()]
    tested = steps["part"] == "test"
    if tested.any():
        steps = steps[tested]
    out: dict[str, Any] = {
        "devices": sorted(steps["device"].unique().tolist()),
        "part": TEST if tested.any() else ALL,
    }
    for phase, group in steps.groupby("phase"):
        keys = (group["device"] + "/" + group["model"]).tolist()
        own = np.abs(group["predicted_us"] / group["measured_us"] - 1.0).to_numpy()
        entry: dict[str, Any] = {
            "n": len(group),
            "mape": float(own.mean()),
            "mape90": grouped_mean_interval(own, keys),
        }
        if "neusight_us" in group.columns and group["neusight_us"].notna().all():
            peer = np.abs(group["neusight_us"] / group["measured_us"] - 1.0).to_numpy()
            entry["neusight_mape"] = float(peer.mean())
            entry["neusight_mape90"] = grouped_mean_interval(peer, keys)
            entry["difference90"] = grouped_mean_interval(own - peer, keys)
        out[str(phase)] = entry
    return out
