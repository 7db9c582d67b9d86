"""Replay of suggestions: other families alone, suggested ones help, pairs are counted."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from predictor.calibrate.readings import KINDS, NO_HOST_US, Readings
from predictor.calibrate.terms import HOST, PLACE, TERMS

TRAINING = Path(__file__).parents[2] / "training"
CLASSES = ("matmul", "conv", "norm")


def readings(times: np.ndarray, classes: list[str], kind: str) -> Readings:
    n = len(times)
    terms = np.zeros((n, len(TERMS)), dtype=np.float32)
    terms[np.arange(n), [PLACE[f"class {c}"] for c in classes]] = 1.0
    return Readings(
        log_predicted_N=np.full(n, np.log(1e4)), log_measured_N=np.log(times),
        kind_N=np.full(n, KINDS.index(kind)), start_N=np.arange(n + 1),
        part_us_P=np.full(n, 1e4), part_PT=terms, host_us_N=np.full(n, NO_HOST_US),
        sharpness_N=np.full(n, 8.0), row_NT=np.zeros((n, len(TERMS)), dtype=np.float32),
        host_term=HOST,
    )  # fmt: skip


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("replay", TRAINING / "suggest_replay.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["replay"] = module
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("replay")


@pytest.fixture
def measured(script):
    """Six steps of three classes whose times are off by a factor of the class; kernels alone."""
    off = {"matmul": 1.3, "conv": 0.8, "norm": 1.0}
    classes = [*CLASSES, *CLASSES]
    steps = readings(np.array([1e4 * off[c] for c in classes]), classes, "step")
    alone = readings(np.array([1e4 * off[c] for c in CLASSES]), list(CLASSES), "alone")
    return script.Measured(
        device="d", steps=steps, names=[f"{c} {i}" for i, c in enumerate(classes)],
        family_M=np.array(["a", "a", "a", "b", "b", "b"]), inside=None,
        owner_I=np.zeros(0, dtype=np.int64), alone=alone,
    )  # fmt: skip


def test_the_pool_holds_other_families_and_kernels_alone(measured):
    candidates, pool = measured.pool("a")
    assert len(candidates) == 6 and len(pool) == 6
    assert [KINDS[k] for k in pool.kind_N] == ["step"] * 3 + ["alone"] * 3
    assert candidates.seconds_C[0] == pytest.approx(4 + 25 * 1.3e-2)


def test_the_step_of_the_same_kind_is_suggested_and_helps(script, measured):
    found = script.replay(measured, target=0, count=1, minutes=5.0)
    assert found["whole_steps"] == 1 and found["measurements"] == 1
    assert found["zero_shot"] == pytest.approx(1 - 1 / 1.3)
    assert found["suggested"] < 0.9 * found["zero_shot"] and found["ratio"] < 1


def test_a_summary_counts_pairs_by_device_and_over_all(script):
    row = {"count": 3, "ratio": 0.5, "null": 0.9, "suggested": 0.1, "random": 0.2,
           "random_median": 0.15, "zero_shot": 0.4, "covered": True, "seconds": 9.0}  # fmt: skip
    rows = pd.DataFrame([
        {**row, "device": "a"}, {**row, "device": "b", "ratio": 1.5, "suggested": 0.3},
    ])  # fmt: skip
    found = script.summary(rows)
    assert found.loc[(3, "all"), "median_ratio"] == 1.0
    assert found.loc[(3, "all"), "ratio_of_means"] == pytest.approx(1.0)
    assert found.loc[(3, "a"), "better"] == 1.0 and found.loc[(3, "b"), "better"] == 0.0
