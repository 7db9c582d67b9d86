"""Intervals of held-out rows come from scales that their own group did not fit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from predictor.fit.crossval import HeldOut
from predictor.fit.interval_check import judged

DEVICES = (
    "nvidia-t4", "nvidia-l4", "nvidia-a100-pcie-40gb", "nvidia-v100-pcie-32gb", "nvidia-rtx-3090",
    "nvidia-rtx-4090",
)  # fmt: skip
LEVEL = 0.9


def rows(spread: dict[str, float], *, seed: int = 0) -> pd.DataFrame:
    """200 kernels a device, off by factors of its own spread."""
    rng = np.random.default_rng(seed)
    parts = []
    for device, sigma in spread.items():
        measured = rng.uniform(100.0, 110.0, 200)
        predicted = measured * np.exp(rng.normal(0.0, sigma, 200))
        parts.append(
            pd.DataFrame({
                "row_id": [f"rows:{device}:{i}" for i in range(200)], "device": device,
                "op": "matmul", "context": "isolated", "measured_us": measured,
                "predicted_us": predicted, "lower_us": predicted, "upper_us": predicted,
                "outside": 0.0, "fold_kind": "device", "fold": device, "group": device,
            })
        )  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def kernels(spread: dict[str, float]) -> pd.DataFrame:
    none = pd.DataFrame()
    return judged(HeldOut(kernels=rows(spread), ops=none, steps=none), LEVEL)["kernels"]


def test_alike_groups_are_covered_as_asked() -> None:
    found = kernels(dict.fromkeys(DEVICES, 0.1))
    assert len(found) == 200 * len(DEVICES)
    assert found["covered"].mean() == pytest.approx(LEVEL, abs=0.03)
    assert found["constant_covered"].mean() == pytest.approx(LEVEL, abs=0.03)
    assert set(found["source"]) == {"rows"}


def test_a_group_does_not_fit_its_own_scale() -> None:
    odd = DEVICES[0]
    found = kernels({**dict.fromkeys(DEVICES, 0.05), odd: 0.5})
    covered = found.groupby("device")["covered"].mean()
    assert covered[odd] < 0.6  # its own rows would have asked for a wider one
    assert (covered.drop(odd) > 0.85).all()


def test_the_score_is_the_width_and_what_lies_outside() -> None:
    found = kernels(dict.fromkeys(DEVICES, 0.1))
    residual = np.log(found["measured_us"] / found["predicted_us"])
    outside = np.maximum(np.abs(residual) - found["below"], 0.0)
    expected = found["below"] + found["above"] + 20.0 * outside
    assert found["score"].to_numpy() == pytest.approx(expected.to_numpy())


def test_a_single_group_has_no_constant() -> None:
    found = kernels({DEVICES[0]: 0.1})
    assert found["constant_score"].isna().all()


def test_steps_are_judged_as_well() -> None:
    rng = np.random.default_rng(1)
    n = 30 * len(DEVICES)
    measured = rng.uniform(1e4, 2e4, n)
    steps = pd.DataFrame({
        "row_id": [f"timm:{i}" for i in range(n)], "device": np.repeat(DEVICES, 30),
        "mode": "infer", "measure": "wall", "execution": "eager", "phase": "total",
        "measured_us": measured, "predicted_us": measured * np.exp(rng.normal(0, 0.1, n)),
        "outside": 0.0, "fold_kind": "device", "fold": "a",
    }).assign(group=lambda s: s["device"])  # fmt: skip
    none = pd.DataFrame()
    found = judged(HeldOut(kernels=none, ops=none, steps=steps), LEVEL)["steps"]
    assert found["covered"].mean() == pytest.approx(LEVEL, abs=0.06)
