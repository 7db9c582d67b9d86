"""`docs/training.md`: its recipe and its search space are sound, its kinds are all there are."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel

from predictor.fit.candidates import NAMED
from predictor.fit.recipe import Recipe, load_recipe
from predictor.fit.search_space import space_of
from predictor.fit.train import AUTO

PAGE = (Path(__file__).parents[2] / "docs/training.md").read_text()


def test_the_recipe_with_its_space_loads(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    recipe = tmp_path / "mine-v1.toml"
    recipe.write_text("\n".join(blocks))
    found = load_recipe(recipe, {"optimizer.epochs": "20"})
    assert found.name == "mine-v1"
    assert set(space_of(found)) == {
        "optimizer.learning_rate", "optimizer.epochs", "network.hidden",
    }  # fmt: skip


def test_every_kind_has_its_line() -> None:
    table = PAGE.partition("## Choosing the kind of model")[2]
    named = re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE)
    assert named == [*NAMED, AUTO]


def test_the_settings_that_are_told_are_settings() -> None:
    table = PAGE.partition("### Settings for much data")[2].partition("## ")[0]
    sections = {
        name: set(type(field.default).model_fields)
        for name, field in Recipe.model_fields.items()
        if isinstance(field.default, BaseModel)
    }
    for key in re.findall(r"^\| `([\w.]+)`", table, flags=re.MULTILINE):
        section, _, name = key.rpartition(".")
        assert name in (sections[section] if section else Recipe.model_fields), key
