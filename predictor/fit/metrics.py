"""Error statistics, and the summary of held-out rows that a checkpoint carries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.fit.crossval import HeldOut
from predictor.graph.ops import OPS

if TYPE_CHECKING:
    import pandas as pd


ERRORS: tuple[str, ...] = ("mape", "median_ape", "p90_ape", "bias")
"""Keys of `errors`."""


def errors(predicted: Any, measured: Any) -> dict[str, float]:
    """Mean, median and 90th percentile of the absolute percentage error, and the mean error."""
    signed = np.asarray(predicted, dtype=float) / np.asarray(measured, dtype=float) - 1.0
    absolute = np.abs(signed)
    return {
        "mape": float(absolute.mean()), "median_ape": float(np.median(absolute)),
        "p90_ape": float(np.quantile(absolute, 0.9)), "bias": float(signed.mean()),
    }  # fmt: skip


def typical_factor(predicted: Any, measured: Any) -> float:
    """By how much a time is off on geometric average: 0.1 is a factor of 1.1, either way.

    Unlike a mean percentage error it weighs half and double alike, and a few rows that are off by
    orders of magnitude do not drown the others: what choices are made by.
    """
    ratio = np.asarray(predicted, dtype=float) / np.asarray(measured, dtype=float)
    return float(np.expm1(np.abs(np.log(ratio)).mean()))


def held_out_metrics(held_out: HeldOut) -> dict[str, Any]:
    """By fold kind (`device`: unseen device, `model`: unseen model family), fold, target, class."""
    groups: list[dict[str, Any]] = []
    for target, rows, key in (
        ("step", held_out.steps, "phase"),
        ("in_step", held_out.ops, "node_class"),
        ("isolated", held_out.kernels, "op"),
    ):
        if not rows.empty:
            groups += _groups(rows, target, key)
    return {"held_out": groups, "by_device": _by_device(held_out)}


def _by_device(held_out: HeldOut) -> list[dict[str, Any]]:
    """The same by source and device, whatever was held out together: steps (in all), kernels."""
    steps, kernels = held_out.steps, held_out.kernels
    parts = []
    if not steps.empty:
        parts.append(("step", "phase", steps[steps["phase"] == "total"]))
    if not kernels.empty:
        classes = [OPS[op].op_class for op in kernels["op"]]
        parts.append(("kernel", "op_class", kernels.assign(op_class=classes)))
    out = []
    for target, key, rows in parts:
        source = rows["row_id"].str.partition(":")[0]
        columns = [rows["fold_kind"], source.rename("source"), rows["device"], rows[key]]
        for (kind, of, device, name), group in rows.groupby(columns):
            out.append({
                "fold_kind": kind, "target": target, "source": of, "device": device, "group": name,
                "n": len(group), **errors(group["predicted_us"], group["measured_us"]),
            })  # fmt: skip
    return out


def _groups(rows: pd.DataFrame, target: str, key: str) -> list[dict[str, Any]]:
    out = []
    if target == "in_step":
        rows = rows.assign(**{key: rows[key] + "_" + rows["phase"]})
    for (kind, fold, name), group in rows.groupby(["fold_kind", "fold", key]):
        out.append({
            "fold_kind": kind, "fold": fold, "target": target, "group": name, "n": len(group),
            **errors(group["predicted_us"], group["measured_us"]),
        })  # fmt: skip
    return out


def mean_over_folds(metrics: dict[str, Any], kind: str, target: str, group: str) -> float:
    """Mean over folds of the MAPE of one group: every held-out device weighs the same.

    Raises:
        ValueError: no such rows.
    """
    values = [
        g["mape"]
        for g in metrics["held_out"]
        if (g["fold_kind"], g["target"], g["group"]) == (kind, target, group)
    ]
    if not values:
        raise ValueError(f"no held-out rows of {kind}/{target}/{group}")
    return float(np.mean(values))
