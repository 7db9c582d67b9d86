"""What a checkpoint says of its data: rows that train, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from predictor.checkpoint import list_releases, load_release
from predictor.fit.data import load_data, training_rows
from predictor.fit.recipe import Recipe
from predictor.fit.splits import device_split
from predictor.fit.trained_rows import trained_rows
from predictor.nn.latency import load_predictor
from predictor.traces.schema import Imported

RECIPE = Recipe(name="tiny-v1")
DEVICES = ("nvidia-l4", "nvidia-t4", "nvidia-v100-pcie-32gb")
TABLES = ("kernels", "steps", "ops", "graphs", "peers")


@pytest.fixture(scope="module")
def data(data_dir: Path) -> Imported:
    return load_data(RECIPE, [data_dir])


def changed(data: Imported, **tables: Any) -> Imported:
    whole = {t: getattr(data, t) for t in TABLES}
    return Imported(source="neusight", **{**whole, **tables})


def facts(data: Imported, split: str = "all") -> dict[str, Any]:
    parts = device_split(split, DEVICES)
    return trained_rows(training_rows(data, parts), RECIPE, parts).facts("neusight")


def test_counts_by_hand(data: Imported) -> None:
    found = facts(data)
    assert (found["kernel_rows"], found["step_rows"]) == (450, 12)
    assert found["op_rows"] == 3 * 4 * 6  # devices, graphs, nodes
    assert found["devices"] == sorted(DEVICES)
    assert found["executions"] == ["eager"]
    assert found["licences"] == ["MIT"]
    assert found["modes"] == ["infer", "train"]


def test_kernels_timed_inside_steps_are_told_apart(data: Imported) -> None:
    assert "in_step_kernel_rows" not in facts(data)
    context = np.where(data.kernels.index < 7, "step", data.kernels["context"])
    found = facts(changed(data, kernels=data.kernels.assign(context=context)))
    assert (found["in_step_kernel_rows"], found["kernel_rows"]) == (7, 450)


def test_a_device_that_tests_is_not_in_it(data: Imported) -> None:
    found = facts(data, "neusight-protocol")
    assert (found["kernel_rows"], found["op_rows"], found["step_rows"]) == (300, 48, 8)
    assert found["devices"] == ["nvidia-t4", "nvidia-v100-pcie-32gb"]
    slower = data.kernels.assign(
        latency_us=data.kernels["latency_us"]
        * np.where(data.kernels["device"] == "nvidia-l4", 2, 1)
    )
    assert facts(changed(data, kernels=slower), "neusight-protocol") == found
    assert facts(changed(data, kernels=slower))["sha256"] != facts(data)["sha256"]


def test_a_device_for_backward_factors_gives_training_steps_only(data: Imported) -> None:
    parts = device_split("neusight-protocol", DEVICES)
    assert "nvidia-v100-pcie-32gb" in parts.backward_factors
    few = parts.without("nvidia-v100-pcie-32gb")
    again = trained_rows(data, RECIPE, few).steps["device"].unique().tolist()
    assert again == ["nvidia-t4"]
    from dataclasses import replace

    factors = replace(few, backward_factors=frozenset({"nvidia-v100-pcie-32gb"}))
    steps = trained_rows(data, RECIPE, factors).steps
    assert set(steps.loc[steps["device"] == "nvidia-v100-pcie-32gb", "mode"]) == {"train"}
    assert len(steps) == 4 + 2


def test_rows_without_a_graph_or_with_a_flag_do_not_count(data: Imported) -> None:
    found = facts(data)
    first = data.kernels.index == 0
    throttled = data.kernels.assign(flag=np.where(first, "throttled", ""))
    assert facts(changed(data, kernels=throttled))["kernel_rows"] == 449
    graphs = {name: g for name, g in data.graphs.items() if name != "toy-train-1024-8"}
    fewer = facts(changed(data, graphs=graphs))
    assert (fewer["step_rows"], fewer["op_rows"]) == (9, 54)
    distributed = data.steps.assign(flag=np.where(data.steps.index == 0, "distributed", ""))
    assert facts(changed(data, steps=distributed))["step_rows"] == 11
    summed = data.ops.assign(flag=np.where(data.ops.index == 0, "op_sum_above_step", ""))
    one_less = facts(changed(data, ops=summed))
    assert one_less["op_rows"] == found["op_rows"] - 1
    hashes = {
        facts(changed(data, **{t: v}))["sha256"]
        for t, v in {"kernels": throttled, "steps": distributed, "ops": summed}.items()
    }
    assert len(hashes | {found["sha256"], fewer["sha256"]}) == 5


@pytest.mark.parametrize(
    ("table", "column"),
    [("kernels", "latency_us"), ("steps", "forward_us"), ("ops", "backward_us")],
)
def test_the_hash_knows_every_label(data: Imported, table: str, column: str) -> None:
    rows = getattr(data, table)
    other = facts(changed(data, **{table: rows.assign(**{column: rows[column] * 1.001})}))
    assert other["sha256"] != facts(data)["sha256"]
    renamed = facts(changed(data, **{table: rows.assign(row_id=rows["row_id"] + "x")}))
    assert renamed["sha256"] != facts(data)["sha256"]


def test_another_source_is_another_fact(data: Imported) -> None:
    parts = device_split("all", DEVICES)
    rows = trained_rows(data, RECIPE, parts)
    none = rows.facts("timm")
    assert (none["kernel_rows"], none["op_rows"], none["step_rows"]) == (0, 0, 0)
    assert none["devices"] == none["executions"] == none["licences"] == []


@pytest.mark.parametrize("name", list_releases())
def test_shipped_releases_whose_facts_are_older_load(name: str) -> None:
    release = load_release(name)
    assert load_predictor(release).learned
    assert release.config["data"]
