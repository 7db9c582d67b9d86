"""Members of an ensemble scored alone, on rows that the recipe's sample leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.fit.data import fit_data, load_data, usable_kernels
from predictor.fit.fitting import fit_networks
from predictor.fit.recipe import Recipe
from predictor.fit.seeds import seed_spread
from predictor.fit.splits import device_split
from predictor.nn.ensemble import Ensemble
from predictor.traces.schema import Imported

DEVICES = ("nvidia-t4", "nvidia-v100-pcie-32gb")


@pytest.fixture(scope="module")
def data(data_dir: Path) -> Imported:
    return load_data(Recipe(name="tiny-v1"), [data_dir])


def recipe(**changes: object) -> Recipe:
    given = {
        "name": "tiny-v1", "rows_per_group": 20, "threads": 1,
        "network": {"hidden": 4, "members": 2, "message_layers": 0}, "optimizer": {"epochs": 1},
    }  # fmt: skip
    return Recipe.model_validate({**given, **changes})


def spread(of: Recipe, data: Imported) -> list[dict[str, object]]:
    split = device_split("all", DEVICES)
    fitted = fit_data(data, of, DEVICES, DEVICES)
    nets = fit_networks(of, fitted, None, progress=False)
    return seed_spread(Ensemble(members=tuple(nets), devices=DEVICES), data, of, split)


def test_every_member_is_scored_on_what_the_sample_leaves_out(data: Imported) -> None:
    of = recipe()
    (found,) = spread(of, data)
    every = usable_kernels(data, of.model_copy(update={"rows_per_group": 0}), DEVICES)
    assert found["n"] == len(every) - len(usable_kernels(data, of, DEVICES)) > 0
    first, second = found["members"]
    assert first["mape"] != second["mape"]
    assert (found["source"], found["target"]) == ("neusight", "kernel")


def test_nothing_is_told_of_one_network_or_of_all_rows(data: Imported) -> None:
    network = {"hidden": 4, "members": 1, "message_layers": 0}
    assert spread(recipe(network=network), data) == []
    assert spread(recipe(rows_per_group=0), data) == []
