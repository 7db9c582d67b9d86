"""The card of a checkpoint names the command that really remakes it."""

from __future__ import annotations

from pathlib import Path

from predictor.fit.train import _remake


def test_the_command_has_the_recipe_file_and_its_overrides() -> None:
    path = Path("anywhere/base-v1.toml")
    assert _remake(path, "base-v1", {}) == (
        "predictor train training/recipes/base-v1.toml --data DIR --out runs/base-v1"
    )
    assert _remake(path, "base-v1-modified", {"seed": "1"}) == (
        "predictor train training/recipes/base-v1.toml --data DIR --out runs/base-v1-modified "
        "--set seed=1"
    )
