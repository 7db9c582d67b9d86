"""What a recipe names of rows, against the rows at hand: a misspelt name would choose nothing."""

from __future__ import annotations

import numpy as np

from predictor.errors import RecipeError
from predictor.fit.recipe import Recipe
from predictor.traces.flags import unknown_flag
from predictor.traces.schema import Imported

SHOWN = 20
"""Values of a column that an error lists, at most."""


def check_choices(recipe: Recipe, data: Imported) -> None:
    """Refuse flags that no row can have, and choices that no kernel row meets.

    Raises:
        RecipeError: a name in `exclude_flags` is no flag, or `only` leaves no kernel row of those
            at hand; the message names what there is.
    """
    _check_flags(recipe, data)
    _check_only(recipe, data)


def _check_flags(recipe: Recipe, data: Imported) -> None:
    """Refuse a flag that no row can have: it would exclude nothing, and its rows would train.

    A flag of a source that the recipe does not read is one all the same.

    Raises:
        RecipeError: a name in `exclude_flags` is no flag; the message names those near it.
    """
    there = {str(f) for t in (data.kernels, data.steps, data.ops) for f in t["flag"].unique() if f}
    for name in recipe.exclude_flags:
        near = unknown_flag(name, there)
        if near is not None:
            raise RecipeError(
                f"exclude_flags: no row has the flag {name!r} (capitals count, and each flag is a "
                f"text of its own); {near}"
            )


def _check_only(recipe: Recipe, data: Imported) -> None:
    """Refuse a choice of kernels that leaves none: whole models alone would train."""
    chosen = np.ones(len(data.kernels), dtype=bool)
    for column, values in recipe.only.items():
        there = sorted(map(str, data.kernels[column][chosen].unique()))
        chosen &= data.kernels[column].isin(values).to_numpy()
        if there and not chosen.any():
            raise RecipeError(
                f"only.{column}: no kernel row has {' or '.join(map(repr, values))}; those at hand "
                f"have {', '.join(map(repr, there[:SHOWN]))}{', …' if there[SHOWN:] else ''}"
            )
