"""What taught a model: rows of weight 0 did not, and simple kinds take timed kernels alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.errors import RecipeError
from predictor.fit.data import devices_of, fit_data, load_data, training_rows
from predictor.fit.learned_kinds import check_weights, learned_kinds
from predictor.fit.recipe import Recipe, recipe_of
from predictor.fit.splits import device_split

KERNELS = {"kernel_rows": 5, "op_rows": 0, "step_rows": 0}
STEPS = {"kernel_rows": 0, "op_rows": 0, "step_rows": 7}


def recipe(**loss: float) -> Recipe:
    return recipe_of(
        {"name": "some-v1", "split": "neusight-protocol", "threads": 1, "loss": loss}, "here"
    )


def test_rows_that_all_weigh_nothing_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"some-v1.*no row trains, loss\.kernel is 0"):
        check_weights(recipe(kernel=0), {"own": KERNELS})
    with pytest.raises(RecipeError, match=r"loss\.step, loss\.model are 0"):
        check_weights(recipe(step=0, model=0), {"own": STEPS})
    check_weights(recipe(kernel=0), {"own": KERNELS, "timm": STEPS})
    check_weights(recipe(op=0, step=0, model=0), {"own": KERNELS})
    check_weights(recipe(), {})  # that there are no rows at all is said where they are drawn


def test_what_has_no_weight_teaches_nothing(data_dir: Path) -> None:
    def found(kind: str = "network", **loss: float) -> set[tuple[str, str]]:
        asked = recipe(**loss)
        every = load_data(asked, [data_dir])
        split = device_split(asked.split, devices_of(every))
        data = training_rows(every, split)
        fitted = fit_data(data, asked, split.train, split.backward_factors)
        kinds: set[Any] = learned_kinds(kind, asked, data, split, fitted)
        assert {k.device_kind for k in kinds} <= {"gpu"}
        return {(k.token, k.device) for k in kinds}

    whole = found()
    ops = found(kernel=0)
    kernels = found(op=0, step=0, backward_ratio=0)
    assert ops | kernels == whole
    assert ("softmax_backward", "nvidia-t4") in ops - kernels
    assert ("softmax", "nvidia-t4") in kernels & ops
    assert found(kernel=0, op=0, step=0, backward_ratio=0) == set()
    assert found("roofline", kernel=0, op=0) == found("boosted_trees") >= kernels
