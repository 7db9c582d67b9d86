"""Error statistics, by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from predictor.fit.crossval import HeldOut
from predictor.fit.metrics import errors, held_out_metrics, mean_over_folds


def test_errors_by_hand() -> None:
    found = errors([110.0, 80.0, 100.0], [100.0, 100.0, 100.0])
    assert found["mape"] == pytest.approx(0.1)
    assert found["median_ape"] == pytest.approx(0.1)
    assert found["bias"] == pytest.approx(-1 / 30)
    assert found["p90_ape"] == pytest.approx(0.18)  # 0, 0.1, 0.2: four fifths from 0.1 to 0.2


def held_out() -> HeldOut:
    steps = pd.DataFrame({
        "fold_kind": "device", "fold": ["a", "a", "b"], "phase": "total",
        "predicted_us": [110.0, 90.0, 150.0], "measured_us": 100.0,
        "row_id": ["timm:1", "timm:2", "own:3"], "device": ["x", "y", "y"],
    })  # fmt: skip
    ops = pd.DataFrame({
        "fold_kind": "model", "fold": "bert", "node_class": "linear",
        "phase": ["forward", "backward"], "predicted_us": [120.0, 100.0], "measured_us": 100.0,
    })  # fmt: skip
    return HeldOut(kernels=pd.DataFrame(), ops=ops, steps=steps)


def test_groups_by_fold_target_and_class() -> None:
    groups = held_out_metrics(held_out())["held_out"]
    assert [(g["fold_kind"], g["fold"], g["target"], g["group"], g["n"]) for g in groups] == [
        ("device", "a", "step", "total", 2),
        ("device", "b", "step", "total", 1),
        ("model", "bert", "in_step", "linear_backward", 1),
        ("model", "bert", "in_step", "linear_forward", 1),
    ]
    assert groups[0]["mape"] == pytest.approx(0.1)
    assert groups[3]["bias"] == pytest.approx(0.2)


def test_every_held_out_device_weighs_the_same() -> None:
    metrics = held_out_metrics(held_out())
    assert mean_over_folds(metrics, "device", "step", "total") == pytest.approx(0.3)
    with pytest.raises(ValueError, match="no held-out rows of device/step/backward"):
        mean_over_folds(metrics, "device", "step", "backward")


def test_devices_that_were_held_out_together_are_told_apart() -> None:
    found = held_out_metrics(held_out())["by_device"]
    assert [(g["source"], g["device"], g["n"], round(g["bias"], 3)) for g in found] == [
        ("own", "y", 1, 0.5), ("timm", "x", 1, 0.1), ("timm", "y", 1, -0.1),
    ]  # fmt: skip


def test_nothing_held_out() -> None:
    empty = HeldOut(kernels=pd.DataFrame(), ops=pd.DataFrame(), steps=pd.DataFrame())
    assert held_out_metrics(empty) == {"held_out": [], "by_device": []}


def test_errors_do_not_change_with_the_unit() -> None:
    rng = np.random.default_rng(0)
    measured, predicted = rng.uniform(1, 2, 50), rng.uniform(1, 2, 50)
    assert errors(predicted * 1e-3, measured * 1e-3) == pytest.approx(errors(predicted, measured))
