"""The live demonstration: its baselines and its table; measuring itself is tested elsewhere."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

TRAINING = Path(__file__).parents[2] / "training"


@pytest.fixture(scope="module")
def live() -> Iterator[ModuleType]:
    """The script, which imports its neighbours."""
    before = set(sys.modules)
    sys.path.insert(0, str(TRAINING))
    try:
        yield importlib.import_module("live_transfer")
    finally:
        sys.path.remove(str(TRAINING))
        for name in {"live_transfer", "measure_own", "own_programs", "own_models"} - before:
            sys.modules.pop(name, None)


def test_the_flops_law_finds_the_line_that_times_lie_on(live):
    def work(us: float, *, train: bool = False):
        return live.Work(compute_us=us, roofline_us=us, train=train)

    known = [work(10.0), work(100.0), work(1000.0), work(10.0, train=True)]
    times = [3.0 * w.compute_us**0.8 * (1.5 if w.train else 1.0) for w in known]
    found = live.flops_law(known, times, [work(500.0), work(500.0, train=True)])
    assert found == pytest.approx([3.0 * 500**0.8, 4.5 * 500**0.8])


def test_errors_and_coverage_by_hand(live):
    rows = pd.DataFrame({
        "measured_us": [100.0, 200.0], "zero_shot": [150.0, 200.0], "zero_shot_lower": [140, 100],
        "zero_shot_upper": [160.0, 400.0], "roofline": [50.0, 100.0], "flops_law": [100.0, 240.0],
        "calibrated": [110.0, 220.0], "calibrated_lower": [90.0, 180.0],
        "calibrated_upper": [120.0, 230.0], "steps_alone": [90.0, 200.0],
        "steps_alone_lower": [50.0, 100.0], "steps_alone_upper": [99.0, 400.0],
    })  # fmt: skip
    lines = {line["method"]: line for line in live.table(rows)}
    assert lines["zero_shot"]["mape"] == pytest.approx(0.25)
    assert lines["zero_shot"]["covers"] == 0.5
    assert lines["calibrated"]["mape"] == pytest.approx(0.1)
    assert lines["calibrated"]["bias"] == pytest.approx(0.1)
    assert lines["calibrated"]["factor"] == pytest.approx(np.exp(np.log(120 / 90 * 230 / 180) / 4))
    assert lines["roofline"]["bias"] == pytest.approx(-0.5) and "covers" not in lines["roofline"]
    text = live.table_text(list(lines.values()))
    assert "| 2 whole steps" in text and "| roofline | 2 | 50.0 |" in text


def test_no_model_of_a_family_to_be_predicted_is_measured_beforehand(live):
    every = {spec.name: live.FOLDS[spec.family] for spec, _, _ in live.steps()}
    names = [name for name, fold in every.items() if fold == live.FOLD]
    assert names and all(live._hidden(name) for name in names)
    others = [name for name, fold in every.items() if fold != live.FOLD]
    assert not any(live._hidden(name) for name in others)
