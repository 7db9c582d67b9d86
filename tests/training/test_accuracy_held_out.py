"""A run's cross-validation as suites of the accuracy page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from predictor.errors import DataError

DEVICES = ("nvidia-t4", "nvidia-l4", "nvidia-rtx-3090")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run: kernels 10% slow on all devices, steps 20%, ops in steps half as long."""
    n = 40 * len(DEVICES)
    measured = np.linspace(100.0, 200.0, n)
    common = {
        "device": np.repeat(DEVICES, 40), "measured_us": measured, "learned": 1.0,
        "in_distribution": 1.0, "outside": [3.0] + [0.0] * (n - 1), "fold_kind": "device",
        "fold": "a", "group": np.repeat(DEVICES, 40), "lower_us": measured,
    }  # fmt: skip
    kernels = pd.DataFrame({
        **common, "row_id": [f"rows:k{i}" for i in range(n)], "op": "matmul",
        "context": "isolated", "dtype": "bf16", "framework": ["pytorch", "vllm"] * (n // 2),
        "predicted_us": 1.1 * measured, "upper_us": 1.2 * measured, "base_us": 0.5 * measured,
    })  # fmt: skip
    ops = pd.DataFrame({
        **common, "row_id": [f"rows:o{i}" for i in range(n)], "node_class": "linear",
        "mode": "infer", "phase": "backward", "predicted_us": 0.5 * measured,
        "upper_us": measured,
    })  # fmt: skip
    steps = pd.DataFrame({
        **common, "row_id": [f"neusight:s{i}" for i in range(n)], "model": "toy", "mode": "train",
        "phase": "total", "predicted_us": 1.2 * measured, "execution": "eager", "batch": 8.0,
        "measure": "wall",
    })  # fmt: skip
    folder = tmp_path / "run"
    (folder / "held_out").mkdir(parents=True)
    for name, frame in (("kernels", kernels), ("ops", ops), ("steps", steps)):
        frame.to_parquet(folder / f"held_out/{name}.parquet")
    (folder / "release").mkdir()
    training = {
        "network": {"members": 3}, "optimizer": {"epochs": 10},
        "calibration": {"most_folds": 3, "epochs": 2},
    }  # fmt: skip
    config = {"name": "tried-v1", "calibration": {"level": 0.9}, "training": training}
    (folder / "release/config.json").write_text(json.dumps(config))
    return folder


def test_each_source_is_a_suite_with_its_kinds_of_rows(
    accuracy: SimpleNamespace, run: Path
) -> None:
    steps, kernels = accuracy.held_out.read_held_out(run, accuracy.suites.read_facts())
    assert (steps.name, kernels.name) == ("neusight-unseen-devices", "rows-unseen-devices")
    assert kernels.split == "cross-validation, devices"
    assert kernels.part == "held out in turn"
    assert kernels.rows["kind"].value_counts().to_dict() == {"alone": 120, "in_step": 120}
    assert set(kernels.rows.loc[kernels.rows["kind"] == "in_step", "op_class"]) == {"linear"}
    assert steps.rows["kind"].unique().tolist() == ["step"]
    assert not steps.rows["seen"].any()
    off = steps.rows["predicted_us"] / steps.rows["measured_us"]
    assert off.to_numpy() == pytest.approx(1.2)
    alone = kernels.rows[kernels.rows["kind"] == "alone"]
    scores = accuracy.calibration.scores_of(alone)
    assert scores == pytest.approx(alone["score"].to_numpy(), rel=1e-6)


def test_the_constant_width_is_that_of_other_groups(accuracy: SimpleNamespace, run: Path) -> None:
    _, kernels = accuracy.held_out.read_held_out(run, accuracy.suites.read_facts())
    rows = kernels.rows[kernels.rows["kind"] == "alone"]
    constant = accuracy.calibration.constant_width(kernels, "alone")
    assert constant.chosen_on == "other groups"
    assert constant.scores(rows) == pytest.approx(rows["constant_score"].to_numpy(), rel=1e-6)
    assert constant.inside(rows).tolist() == rows["constant_covered"].astype(bool).tolist()


def test_evaluations_tell_what_was_not_fitted_of_the_same_steps(
    accuracy: SimpleNamespace, run: Path
) -> None:
    facts = accuracy.suites.read_facts()
    steps, _ = accuracy.held_out.read_held_out(run, facts)
    told = steps.rows.assign(
        neusight_us=2 * steps.rows["measured_us"], roofline_us=0.25 * steps.rows["measured_us"],
        gradient_boosting_us=1.0,
    ).iloc[:30]  # fmt: skip
    evaluated = replace(steps, rows=told)
    joined, kernels = accuracy.held_out.read_held_out(run, facts, [evaluated])
    have = joined.rows["neusight_us"].notna()
    assert have.sum() == 30
    assert joined.rows.loc[have, "roofline_us"].tolist() == told["roofline_us"].tolist()
    assert "gradient_boosting_us" not in joined.rows
    assert "neusight_us" not in kernels.rows


def test_the_page_tells_of_rows_held_out(
    accuracy: SimpleNamespace, run: Path, tmp_path: Path
) -> None:
    suites = accuracy.held_out.read_held_out(run, accuracy.suites.read_facts())
    page = accuracy.report.page(suites)
    assert "Checkpoint `tried-v1, fold networks`" in page
    assert "about a third of all devices, with their near-twins, held out at once" in page
    assert "one network of 2 epochs a fold, where the release has 3 of 10" in page
    assert "| device | nvidia-t4 | 40 | 10.0 | 10.0 | 10.0 | +10.0 |" in page
    assert "| framework | vllm | 60 | 10.0 |" in page


def test_a_folder_without_a_run_is_refused(accuracy: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not the folder of a finished run"):
        accuracy.held_out.read_held_out(tmp_path, accuracy.suites.read_facts())


def test_a_source_that_the_facts_lack_is_named(accuracy: SimpleNamespace, run: Path) -> None:
    facts = {"rows": accuracy.suites.read_facts()["rows"]}
    with pytest.raises(DataError, match=r"no suite 'neusight' in suites\.toml; known: rows"):
        accuracy.held_out.read_held_out(run, facts)
