"""What a recipe names must be among the rows at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.errors import RecipeError
from predictor.fit.choices import check_choices
from predictor.fit.data import load_data
from predictor.fit.recipe import recipe_of


def test_a_misspelt_flag_is_refused(data_dir: Path) -> None:
    data = load_data(recipe_of({"name": "a"}, "test"), [data_dir])
    data.kernels.loc[0, "flag"] = "throttled"
    data.kernels.loc[1, "flag"] = "mine"

    def check(*names: str) -> None:
        check_choices(recipe_of({"name": "a", "exclude_flags": list(names)}, "test"), data)

    for name, near in (
        ("throtled", "'throttled'"), ("Throttled", "'throttled'"), ("NOISY", "'noisy'"),
        ("cold", "'cold_cache'"), ("load", "'other_load'"), ("several", "'several_kernels'"),
        ("noisy,other_load", "'noisy', 'other_load'"), ("", "known: above_peak"),
        ("nobodys", "known: above_peak"),
    ):  # fmt: skip
        with pytest.raises(RecipeError, match=near):
            check("throttled", name)
    check(
        "throttled", "noisy", "waits_for_peers", "mine"
    )  # other sources' flags, and the rows' own


def test_a_choice_that_no_kernel_row_meets_is_refused(data_dir: Path) -> None:
    data = load_data(recipe_of({"name": "a"}, "test"), [data_dir])

    def check(**only: list[str]) -> None:
        check_choices(recipe_of({"name": "a", "only": only}, "test"), data)

    check(dtype=["fp32"], op=["linear", "relu"])
    check(dtype=["fp32", "bf16"])  # one that is there is enough
    with pytest.raises(RecipeError, match=r"only\.dtype: no kernel row has 'fp33'; .* 'fp32'"):
        check(dtype=["fp33"])
    with pytest.raises(RecipeError, match=r"only\.device: no kernel row has 'a' or 'b'; "):
        check(op=["linear"], device=["a", "b"])
    data.kernels = data.kernels[:0]  # whole models alone: there is nothing to choose from
    check(dtype=["fp33"])
