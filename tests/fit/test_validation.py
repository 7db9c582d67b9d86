"""Development folds: whole groups are held out, and nothing of the test part is in any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from predictor.errors import DataError
from predictor.fit.data import devices_of, load_data, training_rows
from predictor.fit.metrics import typical_factor
from predictor.fit.recipe import Recipe, load_recipe
from predictor.fit.splits import device_split
from predictor.fit.validation import DevelopmentFold, development_folds, kernel_groups, overall
from predictor.traces.schema import Imported


def folds(data: Imported, recipe: Recipe) -> tuple[DevelopmentFold, ...]:
    return development_folds(data, recipe, device_split(recipe.split, devices_of(data)))


def devices(rows: Imported) -> set[str]:
    return devices_of(rows)


def test_every_training_device_is_held_out_in_turn_and_the_test_device_never(
    recipe_path: Path, data_dir: Path
) -> None:
    recipe = load_recipe(recipe_path)
    found = folds(load_data(recipe, [data_dir]), recipe)
    assert [f.name for f in found] == ["develop-nvidia-t4", "develop-nvidia-v100-pcie-32gb"]
    for fold in found:
        (held,) = devices(fold.held)
        assert held == fold.name.removeprefix("develop-")
        assert held not in devices(fold.rows)
        assert "nvidia-l4" not in devices(fold.rows) | devices(fold.held)


def test_one_device_is_judged_by_shapes_and_families(recipe_path: Path, data_dir: Path) -> None:
    recipe = load_recipe(recipe_path, {"split": "all"})
    whole = load_data(recipe, [data_dir])
    own = {
        name: getattr(whole, name)[getattr(whole, name)["device"] == "nvidia-t4"]
        for name in ("kernels", "steps", "ops")
    }
    data = replace(whole, **own)
    found = folds(data, recipe)
    seen = training_rows(data, device_split("all", {"nvidia-t4"}))
    assert sum(len(f.held.kernels) for f in found) == len(seen.kernels)
    assert sum(len(f.held.steps) for f in found) == len(seen.steps)
    for fold in found:
        assert not set(fold.rows.kernels["row_id"]) & set(fold.held.kernels["row_id"])
        assert not set(fold.rows.steps["model"]) & set(fold.held.steps["model"])
        products = [
            t.kernels[t.kernels["op"] == "linear"][["dim_n", "dim_k"]]
            for t in (fold.rows, fold.held)
        ]
        shapes = [set(p.itertuples(index=False, name=None)) for p in products]
        assert not shapes[0] & shapes[1]


def test_one_shape_on_one_device_judges_nothing(recipe_path: Path, data_dir: Path) -> None:
    recipe = load_recipe(recipe_path, {"split": "all"})
    data = load_data(recipe, [data_dir])
    one = replace(data, kernels=data.kernels.head(1), steps=data.steps.head(0))
    with pytest.raises(DataError, match="nothing to choose by"):
        folds(one, recipe)


def test_shapes_keep_their_fold_on_every_device(recipe_path: Path, data_dir: Path) -> None:
    rows = load_data(load_recipe(recipe_path), [data_dir]).kernels
    rows = rows.assign(fold=kernel_groups(rows))
    dims = ["op", *(c for c in rows.columns if c.startswith("dim_"))]
    assert (rows.groupby(dims)["fold"].nunique() == 1).all()
    assert rows["fold"].nunique() == 5


def test_half_and_double_are_as_far_off() -> None:
    assert typical_factor([1.0], [2.0]) == pytest.approx(1.0)
    assert typical_factor([2.0], [1.0]) == pytest.approx(1.0)
    assert typical_factor([4.0, 1.0], [1.0, 1.0]) == pytest.approx(1.0)
    assert typical_factor([3.0], [3.0]) == 0.0


def test_folds_and_targets_weigh_the_same() -> None:
    assert overall([{"step": 0.1, "kernel": 0.3}, {"kernel": 0.6}]) == pytest.approx(0.4)
