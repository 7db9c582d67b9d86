"""`[tune]`: every mistake is named, and the recipe's own settings are always tried."""

from __future__ import annotations

import tomllib
from pathlib import Path

import optuna
import pytest

from predictor.errors import RecipeError
from predictor.fit.recipe import Recipe, load_recipe, recipe_of
from predictor.fit.search_space import Range, own_settings, space_of, suggest, with_settings
from predictor.fit.study import toml_lines


def recipe(text: str, tmp_path: Path) -> Recipe:
    path = tmp_path / "a-v1.toml"
    path.write_text(f'name = "a-v1"\n{text}')
    return load_recipe(path)


def test_a_section_quoted_or_not(tmp_path: Path) -> None:
    quoted = recipe(
        '[tune]\n"network.hidden" = [64, 96]\n"loss.op" = { low = 0, high = 1 }', tmp_path
    )
    bare = recipe("[tune]\nnetwork.hidden = [64, 96]\nloss.op = { low = 0, high = 1 }", tmp_path)
    assert quoted.tune == bare.tune
    assert quoted.tune == {"network.hidden": (64, 96), "loss.op": Range(low=0.0, high=1.0)}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('"network.hiden" = [8, 16]', "no setting 'network.hiden' to search; known: network.hid"),
        ('"seed" = [1, 2]', "no setting 'seed' to search"),
        ('"calibration.level" = [0.8, 0.9]', "no setting 'calibration.level' to search"),
        ('"network.hidden" = [2, 64]', "network.hidden: .*greater than or equal to 4 .*got 2"),
        ('"network.hidden" = [64]', "tune.network.hidden: write .*two different values"),
        ('"network.hidden" = [64, 64]', "tune.network.hidden: write .*two different values"),
        ('"network.hidden" = 64', "tune.network.hidden: write .*two different values"),
        ('"network.hidden" = { low = 8, high = 4 }', "low 8 is not below high 4"),
        ('"network.hidden" = { low = 8.5, high = 40 }', "network.hidden: .*integer.*got 8.5"),
        ('"loss.op" = { low = 0, high = 4, log = true }', "log = true needs low above 0"),
        ('"loss.op" = { low = 0, high = 4, lg = true }', "lg: Extra inputs"),
        ('"loss.op" = { low = 0, high = inf }', "high: .*finite"),
    ],
)
def test_mistakes_are_named(line: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=named):
        recipe(f"[tune]\n{line}\n", tmp_path)


def test_the_own_value_is_among_the_choices(tmp_path: Path) -> None:
    found = recipe('[tune]\n"network.hidden" = [32, 64]\n', tmp_path)
    assert space_of(found) == {"network.hidden": (96, 32, 64)}


def test_a_range_without_the_own_value_is_refused(tmp_path: Path) -> None:
    found = recipe('[tune]\n"optimizer.learning_rate" = { low = 1e-5, high = 1e-4 }\n', tmp_path)
    with pytest.raises(RecipeError, match=r"the recipe's own 0.003 is not within 1e-05 to 0.0001"):
        space_of(found)


@pytest.mark.parametrize(
    "text", ["", "[optimizer]\nepochs = 1\nweight_decay = 0\nlearning_rate = 0.9\n"]
)
def test_without_a_section_the_own_values_lie_in_the_default_space(
    text: str, tmp_path: Path
) -> None:
    found = recipe(text, tmp_path)
    space = space_of(found)
    assert {"optimizer.learning_rate", "optimizer.epochs", "network.hidden"} <= set(space)
    for key, value in own_settings(found, space).items():
        dimension = space[key]
        if isinstance(dimension, Range):
            assert dimension.low <= float(value) <= dimension.high
        else:
            assert value in dimension


def test_whole_settings_get_whole_values(tmp_path: Path) -> None:
    found = recipe('[tune]\n"network.hidden" = { low = 90, high = 100 }\n', tmp_path)
    trial = optuna.create_study().ask()
    value = suggest(trial, found, space_of(found))["network.hidden"]
    assert isinstance(value, int)
    assert with_settings(found, {"network.hidden": value}).network.hidden == value


def test_the_space_decides_no_training_run(tmp_path: Path) -> None:
    found = recipe('[tune]\n"network.hidden" = [32, 64]\n', tmp_path)
    assert found.resolved() == recipe("", tmp_path).resolved()


def test_a_recipe_written_as_toml_is_the_recipe(tmp_path: Path) -> None:
    found = recipe(
        'exclude_flags = ["a\\"b\\\\", "é"]\n[optimizer]\nlearning_rate = 1e-7\n', tmp_path
    )
    text = "\n".join(toml_lines(found.resolved()))
    assert recipe_of(tomllib.loads(text), "text") == found
