"""From sources and a split to what a fit sees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from predictor.errors import DataError
from predictor.fit.data import (
    FOLDS,
    fit_data,
    load_data,
    shape_fold,
    training_models,
    usable_kernels,
    usable_steps,
)
from predictor.fit.recipe import Recipe
from predictor.fit.samples import kernel_samples
from predictor.fit.step_samples import step_samples
from predictor.traces.schema import Imported, filled

RECIPE = Recipe(name="tiny-v1")
TRAIN = ("nvidia-t4", "nvidia-v100-pcie-32gb")


@pytest.fixture(scope="module")
def data(data_dir: Path) -> Imported:
    return load_data(RECIPE, [data_dir])


def test_the_small_layout_is_read_whole(data: Imported) -> None:
    assert not data.dropped
    assert len(data.kernels) == 3 * 5 * 30
    assert sorted(data.graphs) == [
        "alien-inf-512-16", "alien-train-512-16", "toy-inf-1024-8", "toy-train-1024-8",
    ]  # fmt: skip
    assert len(data.steps) == 3 * 4
    assert len(data.ops) == 3 * 4 * 6
    assert len(data.peers) == 3 * 4 * 4
    graph = data.graphs["toy-train-1024-8"]
    assert graph.node_weight.tolist() == [1, 3, 3, 3, 3, 3, 1]


def test_a_shape_is_in_one_fold_on_every_device(data: Imported) -> None:
    rows = data.kernels.assign(fold=shape_fold(data.kernels))
    dims = [c for c in rows.columns if c.startswith("dim_")]
    assert (rows.groupby(dims)["fold"].nunique() == 1).all()
    assert rows.groupby(dims)["device"].nunique().max() == 3
    assert set(rows["fold"]) <= set(range(FOLDS))
    assert rows["fold"].value_counts(normalize=True).max() < 0.5


def test_fold_of_a_shape_does_not_depend_on_what_stands_beside_it(data: Imported) -> None:
    folds = shape_fold(data.kernels)
    some = data.kernels.sample(50, random_state=0)
    assert shape_fold(some).equals(folds[some.index])


def test_flags_exclude_rows(data: Imported) -> None:
    flagged = data.kernels.assign(flag=np.where(data.kernels.index % 3 == 0, "throttled", ""))
    held = Imported(
        source="neusight", kernels=flagged, steps=data.steps, ops=data.ops, graphs=data.graphs,
        peers=data.peers,
    )  # fmt: skip
    kept = usable_kernels(held, RECIPE, TRAIN)
    assert set(kept["flag"]) == {""}
    assert set(kept["device"]) == set(TRAIN)
    every = RECIPE.model_copy(update={"exclude_flags": ()})
    assert len(usable_kernels(held, every, TRAIN)) == 2 * 5 * 30


def test_a_sample_of_whole_models_takes_so_many_of_each_group(monkeypatch) -> None:
    rows = filled("steps", {
        "row_id": [f"timm:{i}" for i in range(60)], "source": "timm",
        "device": ["nvidia-t4", "nvidia-l4"] * 30, "mode": ["infer"] * 40 + ["train"] * 20,
    }, 60)  # fmt: skip
    monkeypatch.setattr("predictor.fit.data.usable_models", lambda data, devices: rows)
    recipe = RECIPE.model_copy(update={"models_per_group": 15})
    found = training_models(None, recipe, TRAIN)
    counts = found.groupby(["device", "mode"]).size()
    assert sorted(counts) == [10, 10, 15, 15]
    assert len(training_models(None, RECIPE, TRAIN)) == 60


def test_only_rows_of_the_values_that_a_recipe_names_train(data: Imported) -> None:
    ops = tuple(sorted(data.kernels["op"].unique()))[:2]
    recipe = RECIPE.model_copy(update={"only": {"op": ops, "device": TRAIN[:1]}})
    found = usable_kernels(data, recipe, TRAIN)
    assert set(found["op"]) == set(ops) and set(found["device"]) == {TRAIN[0]}


def test_a_sample_takes_so_many_rows_of_each_group_the_same_ones_always(data: Imported) -> None:
    recipe = RECIPE.model_copy(update={"rows_per_group": 7})
    found = usable_kernels(data, recipe, TRAIN)
    counts = found.groupby(["device", "op", "dtype"]).size()
    assert (counts == 7).all() and len(counts) == 2 * 5
    alone = usable_kernels(data, recipe, TRAIN[:1])
    assert set(alone["row_id"]) == set(found.loc[found["device"] == TRAIN[0], "row_id"])
    every = usable_kernels(data, RECIPE.model_copy(update={"rows_per_group": 1000}), TRAIN)
    assert len(every) == len(usable_kernels(data, RECIPE, TRAIN))


def test_steps_need_a_graph_and_no_flag(data: Imported) -> None:
    assert len(usable_steps(data, TRAIN)) == 8
    steps = data.steps.assign(flag=np.where(data.steps["model"] == "toy", "distributed", ""))
    held = Imported(
        source="neusight", kernels=data.kernels, steps=steps, ops=data.ops,
        graphs={k: v for k, v in data.graphs.items() if "train" in k}, peers=data.peers,
    )  # fmt: skip
    assert usable_steps(held, TRAIN)["graph"].unique().tolist() == ["alien-train-512-16"]


def test_a_fit_sees_nothing_of_what_is_held_out(data: Imported) -> None:
    fitted = fit_data(
        data, RECIPE, ["nvidia-t4"], ["nvidia-l4"], without_models=["toy"], without_fold=2
    )
    assert fitted.hosts == ("nvidia-t4",)
    rows = data.kernels.set_index("row_id").loc[list(fitted.kernels.row_id)]
    assert set(rows["device"]) == {"nvidia-t4"}
    assert 2 not in set(shape_fold(rows))
    assert fitted.steps is not None and fitted.ratios is not None
    assert set(fitted.steps.steps["model"]) == {"alien"}
    assert set(fitted.steps.steps["device"]) == {"nvidia-t4"}
    assert set(fitted.ratios.steps["device"]) == {"nvidia-l4"}
    assert set(fitted.ratios.steps["mode"]) == {"train"}
    assert (fitted.ratios.device_N == -1).all()
    assert (fitted.ratios.host_N == -1).all()


def test_no_rows_left_is_an_error(data: Imported) -> None:
    with pytest.raises(
        DataError, match=r"no rows to train on of the training devices .nvidia-a40."
    ):
        fit_data(data, RECIPE, ["nvidia-a40"], [])


def test_no_samples_of_no_rows(data: Imported) -> None:
    assert step_samples(data, data.steps.iloc[:0], TRAIN) is None
    empty = kernel_samples(data.kernels.iloc[:0], TRAIN)
    assert len(empty.measured_us_N) == 0
    assert empty.x_NF.shape[0] == 0


def test_samples_keep_every_row_and_large_sweeps_do_not_drown_small_ones(data: Imported) -> None:
    rows = data.kernels[data.kernels["device"].isin(TRAIN)]
    few = rows[(rows["op"] != "add") | (rows.index % 10 == 0)]
    samples = kernel_samples(few, TRAIN)
    assert sorted(samples.row_id) == sorted(few["row_id"])
    by_id = few.set_index("row_id")
    assert np.allclose(
        samples.measured_us_N.numpy(), by_id.loc[list(samples.row_id), "latency_us"], rtol=1e-6
    )
    assert float(samples.weight_N.mean()) == pytest.approx(1.0, rel=1e-5)
    op = by_id.loc[list(samples.row_id), "op"].to_numpy()
    weight = samples.weight_N.numpy()
    assert weight[op == "add"].min() > weight[op == "linear"].max()


def test_step_samples_hold_graphs_side_by_side(data: Imported) -> None:
    steps = usable_steps(data, TRAIN)
    samples = step_samples(data, steps, TRAIN)
    assert samples is not None
    assert samples.graphs == 8
    sizes = [len(data.graphs[g].table) for g in samples.steps["graph"]]
    assert samples.graph_N.tolist() == np.repeat(np.arange(8), sizes).tolist()
    source, target = samples.edge_index_2E
    assert (samples.graph_N[source] == samples.graph_N[target]).all()
    assert (source < target).all()
    assert samples.backward_us_G.isnan().tolist() == (samples.steps["mode"] == "infer").tolist()
    # an op label sums kernels of one step, one phase
    assert (samples.label_K.diff() >= 0).all()
    owner = samples.ops["graph_index"].to_numpy()[samples.label_K.numpy()]
    assert (samples.graph_N[samples.kernel_K].numpy() == owner).all()
    phase = (samples.ops["phase"] == "backward").to_numpy()[samples.label_K.numpy()]
    assert ((samples.phase_N[samples.kernel_K].numpy() == 1) == phase).all()


def test_ratios_pair_the_phases_of_one_node(data: Imported) -> None:
    samples = step_samples(data, usable_steps(data, TRAIN), TRAIN)
    assert samples is not None
    forward, backward = samples.ratio_2P.tolist()
    assert len(forward) > 0
    ops = samples.ops
    for f, b in zip(forward, backward, strict=True):
        assert (ops.loc[f, "phase"], ops.loc[b, "phase"]) == ("forward", "backward")
        for column in ("device", "graph", "node"):
            assert ops.loc[f, column] == ops.loc[b, column]
        assert ops.loc[b, "measured_us"] == pytest.approx(2 * ops.loc[f, "measured_us"])


def test_the_same_folder_twice_is_one_set_of_rows(data: Imported, data_dir: Path) -> None:
    twice = load_data(RECIPE, [data_dir, data_dir])
    for table in ("kernels", "steps", "ops", "peers"):
        assert len(getattr(twice, table)) == len(getattr(data, table)), table
