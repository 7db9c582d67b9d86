"""Interval scales of a release from its held-out rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from predictor.fit.calibration import (
    FALLBACK_STEP,
    FALLBACK_WIDENING,
    MIN_ROWS,
    SLOPES,
    calibrate,
)
from predictor.fit.crossval import HeldOut, folds
from predictor.fit.recipe import Recipe
from predictor.fit.splits import device_split

NOTHING = HeldOut(kernels=pd.DataFrame(), ops=pd.DataFrame(), steps=pd.DataFrame())


def kernels(op: str, rows: int, *, off: float, half: float, kind: str = "device") -> pd.DataFrame:
    """Rows off by up to `off` in log time, predicted with a half-width of `half`."""
    log = np.linspace(-off, off, rows)
    return pd.DataFrame({
        "fold_kind": kind, "fold": "half", "group": [f"g{i % 4}" for i in range(rows)], "op": op,
        "device": "nvidia-t4", "context": "isolated", "outside": 0.0,
        "measured_us": 100 * np.exp(log), "predicted_us": 100.0,
        "lower_us": 100 * np.exp(-half), "upper_us": 100 * np.exp(half),
    })  # fmt: skip


def test_nothing_held_out_falls_back_to_assumed_scales() -> None:
    scales = calibrate(NOTHING, 0.9)
    assert scales["level"] == 0.9
    for kind in ("seen", "unseen"):
        assert scales["isolated"][kind] == scales["in_step"][kind] == {"default": FALLBACK_WIDENING}
        assert scales["step"][kind] == {"total": FALLBACK_STEP[kind]}
    assert FALLBACK_STEP["unseen"] > FALLBACK_STEP["seen"]


def test_narrow_intervals_are_widened_by_class_and_kind() -> None:
    rows = [
        kernels("linear", 400, off=1.0, half=0.2),
        kernels("softmax", 400, off=0.2, half=0.5),
        kernels("linear", 400, off=0.4, half=0.2, kind="model"),
    ]
    held = HeldOut(kernels=pd.concat(rows), ops=pd.DataFrame(), steps=pd.DataFrame())
    scales = calibrate(held, 0.9)["isolated"]
    # the wider quantiles are the more certain ones: they do not count
    assert scales["unseen"]["band"] == scales["seen"]["band"] == 0.0
    # uniform residuals: 90% of them lie within 0.9 of the largest, 0.8 over both; four groups
    # against three groups' worth of the cell around
    assert scales["unseen"]["default"] == pytest.approx(0.8, abs=0.02)
    assert scales["unseen"]["matmul"] == pytest.approx((4 * 0.9 + 3 * 0.8) / 7, abs=0.02)
    assert scales["unseen"]["softmax"] == pytest.approx((4 * 0.18 + 3 * 0.8) / 7, abs=0.02)
    assert scales["seen"]["default"] == pytest.approx(0.36, abs=0.02)
    assert "matmul" not in scales["seen"]  # no other rows than all


def test_quantiles_that_tell_wide_from_narrow_count() -> None:
    rows = [kernels("linear", 400, off=1.0, half=0.9), kernels("softmax", 400, off=0.2, half=0.18)]
    held = HeldOut(kernels=pd.concat(rows), ops=pd.DataFrame(), steps=pd.DataFrame())
    scales = calibrate(held, 0.9)["isolated"]["unseen"]
    assert scales["band"] == 1.0
    assert [scales[name] for name in ("default", "matmul", "softmax")] == pytest.approx(
        [0.0] * 3, abs=0.02
    )


def test_an_error_that_grows_outside_of_training_widens_there() -> None:
    far = kernels("linear", 400, off=0.8, half=0.1).assign(outside=2.0)
    near = kernels("linear", 400, off=0.1, half=0.1)
    held = HeldOut(kernels=pd.concat([near, far]), ops=pd.DataFrame(), steps=pd.DataFrame())
    assert calibrate(held, 0.9)["isolated"]["unseen"]["outside"] == max(SLOPES)
    far = kernels("linear", 400, off=0.1, half=0.1).assign(outside=2.0)
    held = HeldOut(kernels=pd.concat([near, far]), ops=pd.DataFrame(), steps=pd.DataFrame())
    assert calibrate(held, 0.9)["isolated"]["unseen"]["outside"] == 0.0


def test_a_device_never_seen_is_never_surer_than_a_seen_one() -> None:
    rows = [
        kernels("linear", 400, off=0.3, half=0.2),
        kernels("linear", 400, off=1.0, half=0.2, kind="model"),
    ]
    held = HeldOut(kernels=pd.concat(rows), ops=pd.DataFrame(), steps=pd.DataFrame())
    scales = calibrate(held, 0.9)["isolated"]
    assert scales["unseen"]["default"] == scales["seen"]["default"]
    assert scales["seen"]["default"] + 0.2 * scales["seen"]["band"] == pytest.approx(0.9, abs=0.02)


def test_a_class_with_few_rows_takes_the_scale_of_all() -> None:
    rows = [kernels("linear", 200, off=1.0, half=0.2), kernels("add", MIN_ROWS - 1, off=9, half=0)]
    held = HeldOut(kernels=pd.concat(rows), ops=pd.DataFrame(), steps=pd.DataFrame())
    scales = calibrate(held, 0.9)["isolated"]["unseen"]
    assert "elementwise" not in scales
    assert {"default", "matmul"} <= set(scales)


def test_step_half_widths_cover_the_level_of_the_groups() -> None:
    residual = np.linspace(-0.5, 0.5, 101)
    steps = pd.DataFrame({
        "fold_kind": "device", "fold": "half", "group": [f"g{i % 5}" for i in range(101)],
        "phase": "total", "device": "nvidia-t4", "outside": 0.0, "measure": "wall",
        "mode": "infer", "execution": "eager",
        "predicted_us": 100.0, "measured_us": 100 * np.exp(residual),
    })  # fmt: skip
    held = HeldOut(kernels=pd.DataFrame(), ops=pd.DataFrame(), steps=steps)
    scales = calibrate(held, 0.9)["step"]
    assert scales["unseen"]["total"] == pytest.approx(0.45, abs=0.03)
    inside = np.abs(residual) <= scales["unseen"]["total"]
    assert inside.mean() >= 0.9
    assert scales["seen"] == {"total": FALLBACK_STEP["seen"]}


DEVICES = (
    "nvidia-a100-pcie-40gb", "nvidia-a100-pcie-80gb", "nvidia-t4", "nvidia-l4",
)  # fmt: skip
MODELS = ("bert_large", "gpt3_xl", "gpt3_27", "toy")


def test_folds_hold_out_every_group_once_with_its_twins() -> None:
    recipe, split = Recipe(name="a"), device_split("all", DEVICES)
    found = list(folds(recipe, split, MODELS))
    by_device = [f for f in found if f.kind == "device"]
    assert sorted(d for f in by_device for d in f.held_devices) == sorted(DEVICES)
    for fold in by_device:
        assert not set(fold.devices) & set(fold.held_devices)
        assert set(fold.devices) | set(fold.held_devices) == set(DEVICES)
    together = next(f for f in by_device if "nvidia-a100-pcie-40gb" in f.held_devices)
    assert together.held_devices == ("nvidia-a100-pcie-40gb", "nvidia-a100-pcie-80gb")
    by_model = [f for f in found if f.kind == "model"]
    assert {f.name: set(f.held_models) for f in by_model} == {
        "bert": {"bert_large"}, "gpt3": {"gpt3_xl", "gpt3_27"}, "toy": {"toy"},
    }  # fmt: skip
    assert len({f.shape_fold for f in by_model}) == 3
    assert len({(f.kind, f.name) for f in found}) == len(found)


def test_folds_can_be_switched_off_and_need_two_groups() -> None:
    off = Recipe.model_validate(
        {"name": "a", "calibration": {"device_folds": False, "model_folds": False}}
    )
    assert list(folds(off, device_split("all", DEVICES), MODELS)) == []
    one = device_split("all", ["nvidia-a100-pcie-40gb", "nvidia-a100-pcie-80gb"])
    assert list(folds(Recipe(name="a"), one, ["gpt3_xl", "gpt3_27"])) == []


def test_kernel_shapes_take_turns_where_no_family_can() -> None:
    one = device_split("all", ["nvidia-t4"])
    found = list(folds(Recipe(name="a"), one, [], {0, 3}))
    assert [(f.kind, f.name, f.shape_fold) for f in found] == [
        ("model", "shapes-0", 0), ("model", "shapes-3", 3),
    ]  # fmt: skip
    assert all(f.held_models == () and f.devices == ("nvidia-t4",) for f in found)
    assert list(folds(Recipe(name="a"), one, [], {3})) == []
    with_families = list(folds(Recipe(name="a"), one, MODELS, {0, 3}))
    assert {f.name for f in with_families} == {"bert", "gpt3", "toy"}


def test_without_steps_and_ops_a_step_is_as_unsure_as_kernels_alone() -> None:
    rows = kernels("linear", 400, off=1.0, half=0.2, kind="model")
    held = HeldOut(kernels=rows, ops=pd.DataFrame(), steps=pd.DataFrame())
    scales = calibrate(held, 0.9)
    seen = scales["isolated"]["seen"]
    assert scales["in_step"]["seen"] == seen
    half = seen["default"] + 0.2 * seen["band"]
    assert half == pytest.approx(0.9, abs=0.02)
    assert scales["step"]["seen"]["total"] == seen["default"]
    few = HeldOut(kernels=rows.head(MIN_ROWS - 1), ops=pd.DataFrame(), steps=pd.DataFrame())
    assert calibrate(few, 0.9)["step"]["seen"] == {"total": FALLBACK_STEP["seen"]}


def test_many_groups_are_held_out_several_at_a_time() -> None:
    hoppers = {"nvidia-h100-sxm-80gb", "nvidia-h200-sxm-141gb"}
    devices = {"nvidia-t4", "nvidia-l4", "nvidia-p4", *hoppers}
    split = device_split("all", devices)
    models = {"bert_large", "gpt2_large", "opt_13"}
    for most, device_folds, model_folds in ((0, 4, 3), (2, 2, 2), (9, 4, 3)):
        recipe = Recipe.model_validate({"name": "a", "calibration": {"most_folds": most}})
        found = list(folds(recipe, split, models))
        by_kind = [[f for f in found if f.kind == kind] for kind in ("device", "model")]
        assert [len(f) for f in by_kind] == [device_folds, model_folds]
        held = [d for f in by_kind[0] for d in f.held_devices]
        assert sorted(held) == sorted(devices)
        assert sorted(m for f in by_kind[1] for m in f.held_models) == sorted(models)
        for fold in by_kind[0]:
            assert set(fold.devices) == devices - set(fold.held_devices)
            twins = hoppers & set(fold.held_devices)
            assert len(twins) in (0, 2)
