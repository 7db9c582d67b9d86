"""Splits where they are used: what training sees, what a report calls each row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from predictor.fit.data import devices_of, load_data, training_rows
from predictor.fit.evaluate import evaluate
from predictor.fit.model_samples import shipped_bank
from predictor.fit.recipe import Recipe
from predictor.fit.splits import device_split
from predictor.traces.schema import Imported, filled


@pytest.fixture(scope="module")
def data(data_dir: Path) -> Imported:
    return load_data(Recipe(name="a-v1"), [data_dir])


@pytest.mark.parametrize(
    "name", ["unseen-nvidia-l4", "unseen-nvidia-l4/develop-nvidia-t4", "unseen-nk", "all"]
)
def test_training_sees_the_training_part_alone(data: Imported, name: str) -> None:
    split = device_split(name, devices_of(data))
    seen = training_rows(data, split)
    for table in ("kernels", "steps"):
        rows, kept = getattr(data, table), getattr(seen, table)
        expected = rows["row_id"][split.parts(rows, table) == "train"]
        assert kept["row_id"].tolist() == expected.tolist()
    assert 0 < len(seen.kernels) <= len(data.kernels)


def test_an_unseen_source_leaves_nothing_of_it(data: Imported) -> None:
    seen = training_rows(data, device_split("unseen-source-neusight", devices_of(data)))
    assert (len(seen.kernels), len(seen.steps)) == (0, 0)


def test_devices_of_backward_factors_keep_their_steps(data: Imported) -> None:
    """The protocol may read ratios of backward to forward on devices that it does not train on."""
    row = data.steps.iloc[:1].assign(device="amd-mi210", row_id="amd")
    wider = Imported.empty("neusight")
    wider.steps = filled("steps", {c: row[c].to_numpy() for c in row.columns}, 1)
    seen = training_rows(wider, device_split("neusight-protocol", ["amd-mi210"]))
    assert seen.steps["row_id"].tolist() == ["amd"]


def test_a_report_on_shapes_scores_products_by_part_and_no_step(
    data: Imported, data_dir: Path, run_dir: Path
) -> None:
    found = evaluate("neusight", [data_dir], checkpoint=run_dir / "release", split="unseen-nk")
    rows = found.scored.rows
    alone = rows[(rows["target"] == "kernel") & (rows["mode"] == "isolated")]
    parts = device_split("unseen-nk", devices_of(data)).parts(data.kernels, "kernels")
    assert alone["part"].tolist() == parts.tolist()
    assert set(alone["part"]) == {"train", "development", "test"}
    assert set(rows["part"][rows["mode"] != "isolated"]) == {"unused"}


def test_the_graphs_that_come_with_the_library_have_the_folds_of_the_splits() -> None:
    """And no captured graph is in two parts, whatever the model tables group."""
    index = shipped_bank("timm").index
    rows = filled("steps", {
        "model": index["model"].to_numpy(), "size": index["size"].to_numpy(dtype=float),
        "mode": index["mode"].to_numpy(), "source": "timm", "device": "nvidia-rtx-3090",
    }, len(index))  # fmt: skip
    part = device_split("timm-families", ["nvidia-rtx-3090"]).parts(rows, "steps")
    used = index.assign(part=part)[part != "unused"]
    assert used.groupby("graph")["part"].nunique().max() == 1
    expected = used["fold"].map({0: "test", 1: "development"}).fillna("train")
    assert used["part"].tolist() == expected.tolist()
    assert index["cross_fold_twin"][part == "unused"].all()


def test_parts_of_a_split_are_asked_for(data):
    split = device_split("neusight-protocol", devices_of(data))
    both = training_rows(data, split, ("train", "test"))
    parts = split.parts(data.kernels, "kernels")
    assert len(both.kernels) == int(np.isin(parts, ["train", "test"]).sum())
    assert len(both.kernels) > len(training_rows(data, split).kernels)
