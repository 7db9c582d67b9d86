"""Recipes: strict TOML, every value overridable, every mistake named."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from predictor.errors import RecipeError
from predictor.fit.recipe import Recipe, load_recipe, recipe_of

ROOT = Path(__file__).parents[2]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return path


def test_defaults_fill_what_a_recipe_leaves_out(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, 'name = "a-v1"\n[network]\nhidden = 32\n'))
    assert (recipe.name, recipe.network.hidden, recipe.split) == ("a-v1", 32, "all")
    assert recipe.network.depth == Recipe(name="a-v1").network.depth


@pytest.mark.parametrize("path", sorted((ROOT / "training/recipes").glob("*.toml")))
def test_recipes_of_the_project_are_sound(path: Path) -> None:
    assert load_recipe(path).name == path.stem


def test_a_recipe_survives_its_own_dump(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, 'name = "a-v1"\nseed = 3\n[optimizer]\nepochs = 2\n'))
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe
    with pytest.raises(ValidationError):
        recipe.seed = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('name = "a-v1"\nhiden = 3\n', "unknown key 'hiden'; known there: name, sources"),
        (
            'name = "a-v1"\n[network]\nhiden = 3\n',
            "unknown key 'network.hiden'; known there: hidden",
        ),
        ("seed = 1\n", "name: Field required"),
        ('name = "a-v1"\n[network]\nhidden = 2\n', r"network.hidden: .*greater.*4 \(got 2\)"),
        ('name = "a-v1"\n[network]\ndropout = 1.0\n', "network.dropout: .*less than 1"),
        ('name = "a-v1"\n[network]\nhidden = "wide"\n', "network.hidden: .*integer"),
        ('name = "a-v1"\n[optimizer]\nlearning_rate = 0\n', "optimizer.learning_rate: .*greater"),
        ('name = "a-v1"\n[optimizer]\nlearning_rate = nan\n', "optimizer.learning_rate: "),
        ('name = "a-v1"\n[optimizer]\nlearning_rate = inf\n', "optimizer.learning_rate: .*finite"),
        ('name = "a-v1"\n[loss]\nop = -1\n', "loss.op: .*greater"),
        ('name = "a-v1"\n[loss]\nop = inf\n', "loss.op: .*finite"),
        ('name = "a-v1"\n[calibration]\nlevel = 0.3\n', "calibration.level: "),
        ('name = "a-v1"\nthreads = 0\n', "threads: "),
        ('name = "a-v1"\nsources = []\n', "sources: "),
        ('name = "a-v1"\nsources = ["own", "timm", "own"]\n', "sources: .*each source once"),
        ('name = "Not A Name"\n', "name: "),
        ('name = "a/../b"\n', "name: "),
        ('name = ""\n', "name: "),
        ('name = "a-v1"\nseed = -1\n', "seed: "),
        ('name = "a-v1"\nseed = true\n', "seed: true and false are for switches"),
        ('name = "a-v1"\n[optimizer]\nepochs = true\n', "optimizer.epochs: true and false"),
        ('name = "a-v1"\nnetwork = 3\n', "network: "),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(RecipeError, match=r"recipe\.toml: " + named) as caught:
        load_recipe(write(tmp_path, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"name = ", b"[a\n", b"\xff\xfe", b'{"name": 1}', b"seed = " + b"9" * 5000]
)
def test_not_toml(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match="not a readable TOML file"):
        load_recipe(path)


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"none\.toml: not a readable TOML file"):
        load_recipe(tmp_path / "none.toml")


def test_overrides_take_toml_values_or_plain_text(tmp_path: Path) -> None:
    path = write(tmp_path, 'name = "a-v1"\n[network]\nhidden = 32\n')
    recipe = load_recipe(
        path,
        {
            "network.hidden": "64", "optimizer.learning_rate": "1e-3", "split": "unseen-nvidia-t4",
            "calibration.device_folds": "false", "exclude_flags": '["throttled"]',
            "name": '"b-v2"', "network.dropout": "0.5",
        },
    )  # fmt: skip
    assert recipe.network.hidden == 64
    assert recipe.network.dropout == 0.5
    assert recipe.optimizer.learning_rate == 1e-3
    assert recipe.split == "unseen-nvidia-t4"
    assert recipe.calibration.device_folds is False
    assert recipe.exclude_flags == ("throttled",)
    assert recipe.name == "b-v2"


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("network.width", "3", r"unknown key 'network\.width'; known there: hidden"),
        ("network.hidden", "many", r"network\.hidden: .*integer"),
        ("network.hidden.more", "3", r"--set network\.hidden\.more: 'hidden' is a value"),
        ("name.more", "3", r"--set name\.more: 'name' is a value"),
        ("nets.hidden", "3", "unknown key 'nets'; known there: name"),
        (".hidden", "3", r"--set \.hidden"),
        ("network.", "3", r"--set network\."),
        ("", "3", "--set "),
        ("seed", "3\nname = 'x'", "seed: "),
    ],
)
def test_wrong_overrides(tmp_path: Path, key: str, value: str, named: str) -> None:
    path = write(tmp_path, 'name = "a-v1"\n[network]\nhidden = 32\n')
    with pytest.raises(RecipeError, match=named) as caught:
        load_recipe(path, {key: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("only", "text"),
    [({"op": ["sofmax"]}, "no op 'sofmax'"), ({"dtype": []}, "only.dtype names no value")],
)
def test_a_choice_of_rows_that_none_can_meet_is_refused(only, text) -> None:
    with pytest.raises(RecipeError, match=text):
        recipe_of({"name": "x", "only": only}, "here")
