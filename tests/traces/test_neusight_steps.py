"""Measured steps of NeuSight, ops inside them, and what the peers predicted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.traces.sources import neusight

V100 = "Tesla V100-PCIE-32GB"
TRAIN, INFER = "toy-train-4-2", "toy-inf-4-2"
LABEL = {"num_layer": 3, "e2e_latency": 9.0, "fw_latency": 3.0, "bwall_latency": 6.0}


def flags(data):
    return dict(zip(data.steps["graph"], data.steps["flag"], strict=True))


def test_a_step_in_training_and_one_for_inference(layout):
    layout.models()
    steps = neusight.read(layout.root).steps.set_index("graph")
    train, infer = steps.loc[TRAIN], steps.loc[INFER]
    assert (train["latency_us"], train["forward_us"], train["backward_us"]) == (9e3, 3e3, 6e3)
    assert (infer["latency_us"], infer["forward_us"]) == (2e3, 2e3)
    assert np.isnan(infer["backward_us"])
    assert (train["mode"], infer["mode"]) == ("train", "infer")
    assert (train["model"], train["seq"], train["batch"], train["plan"]) == ("toy", 4, 2, "")
    assert train["device"] == "nvidia-v100-pcie-32gb"
    assert train["row_id"] == f"neusight:label/Tesla_V100-PCIE-32GB/{TRAIN}.json"
    assert (steps["flag"] == "").all()


def test_ops_inside_a_step(layout):
    layout.models()
    data = neusight.read(layout.root)
    ops = data.ops[data.ops["graph"] == TRAIN]
    assert len(ops) == 13
    assert set(ops["forward_us"]) == {100.0}
    assert set(ops["backward_us"]) == {200.0}
    names = [data.graphs[TRAIN].nodes[i] for i in ops["node"]]
    weight = dict(zip(names, ops["weight"], strict=True))
    assert (weight["addmm"], weight["lm_head"]) == (3, 1)
    assert ops["row_id"].iloc[0].endswith(f"{TRAIN}.json:transformer_wte")


def test_ops_that_add_up_to_more_than_their_step_are_flagged(layout):
    layout.models()
    # 8 nodes x 3 layers + 5 around them, 0.1 ms each: 2.9 ms, below a forward of 3 ms
    assert set(neusight.read(layout.root).ops["flag"]) == {"", "op_sum_above_step"}
    by_graph = neusight.read(layout.root).ops.groupby("graph")["flag"].unique()
    assert by_graph[TRAIN].tolist() == [""]
    assert by_graph[INFER].tolist() == ["op_sum_above_step"]  # above 1.4 x 2 ms


def test_long_steps_have_the_tighter_limit(layout, nodes):
    layout.graph(INFER, nodes)
    layout.label(V100, INFER, {**LABEL, "e2e_latency": 150.0, "fw_latency": 150.0})
    # 1.2 times the step: 24 x 6.25 + 30 = 180 ms
    ops = [("addmm", 50.0, 0.0), ("lm_head", 30.0, 0.0)]
    layout.label_ops(V100, INFER, ops)
    assert set(neusight.read(layout.root).ops["flag"]) == {"op_sum_above_step"}


@pytest.mark.parametrize(
    ("name", "flag", "plan"),
    [
        ("toy-inf-4-2-fusion", "compiled", ""),
        ("toy-train-4-2-dp4", "distributed", "dp4"),
        ("toy-train-4-2-pp4_1", "distributed", "pp4_1"),
        ("toy-inf-8-2", "no_graph", ""),
    ],
)
def test_steps_that_cannot_be_scored_say_why(layout, nodes, name, flag, plan):
    layout.graph("toy-inf-4-2-fusion", nodes)
    layout.graph("toy-train-4-2-dp4", nodes)
    layout.graph("toy-train-4-2-pp4_1", nodes)
    layout.label(V100, name, {**LABEL, "num_layer": 0})
    data = neusight.read(layout.root)
    assert (data.steps["flag"].tolist(), data.steps["plan"].tolist()) == ([flag], [plan])
    assert not data.graphs


def test_phases_that_were_not_told_apart_are_unknown_not_zero(layout):
    layout.label(V100, "toy-train-4-2-tp4", {**LABEL, "fw_latency": 0, "bwall_latency": 0})
    row = neusight.read(layout.root).steps.iloc[0]
    assert row["latency_us"] == 9e3
    assert np.isnan(row["forward_us"]) and np.isnan(row["backward_us"])


def test_layer_count_may_come_from_another_label_of_the_graph(layout, nodes):
    layout.graph(TRAIN, nodes)
    layout.label("NVIDIA L4", TRAIN, {**LABEL, "num_layer": None})
    layout.label(V100, TRAIN, LABEL)
    data = neusight.read(layout.root)
    assert data.steps["flag"].tolist() == ["", ""]
    assert data.graphs[TRAIN].node_weight.max() == 3


@pytest.mark.parametrize("count", [None, 0, -1, 2.5, "many", True])
def test_without_a_layer_count_a_step_is_kept_and_flagged(layout, nodes, count):
    layout.graph(TRAIN, nodes)
    layout.label(V100, TRAIN, {**LABEL, "num_layer": count})
    label = {k: v for k, v in LABEL.items() if k != "num_layer"}
    layout.label("NVIDIA L4", TRAIN, label)
    assert flags(neusight.read(layout.root)) == {TRAIN: "no_layer_count"}


def test_a_layer_that_is_not_recognised_is_not_guessed(layout, nodes):
    own = [replace(n, name=n.name.replace("_h_0_", "_blk0_"), prev=()) for n in nodes]
    layout.graph(TRAIN, own)
    layout.label(V100, TRAIN, LABEL)
    data = neusight.read(layout.root)
    assert flags(data) == {TRAIN: "no_layer_stack"}
    assert not data.graphs


def test_labels_of_devices_that_the_publisher_did_not_have(layout, nodes):
    layout.graph(TRAIN, nodes)
    for folder in ("NVIDIA_H100_80GB_HBM3", "AMD_Instinct_MI250", "NVIDIA_A10"):
        layout.label(folder, TRAIN, LABEL)
        layout.label_ops(folder, TRAIN, [("addmm", 0.1, 0.2)])
    data = neusight.read(layout.root)
    devices = {"nvidia-h100-sxm-80gb", "amd-mi250-gcd", "nvidia-a10"}
    assert set(data.steps["device"]) == set(data.ops["device"]) == devices
    assert not data.dropped


def test_predictions_of_peers_are_no_labels(layout):
    layout.models()
    data = neusight.read(layout.root)
    peers = data.peers[data.peers["graph"] == TRAIN].set_index("peer")
    assert set(peers.index) == set(neusight.PEERS)
    assert set(peers["latency_us"]) == {5e3}
    assert set(peers["backward_us"]) == {6e3}
    assert not any("prediction" in f for f in (*data.steps["file"], *data.kernels["file"]))


def test_published_predictions_of_ops(layout):
    layout.models()
    ops = neusight.peer_ops(layout.root)
    row = ops[(ops["graph"] == TRAIN) & (ops["node_name"] == "addmm")].set_index("phase")
    assert row.loc["forward", "neusight_us"] == pytest.approx(100.0)
    assert row.loc["backward", "roofline_published_us"] == pytest.approx(200.0)
    assert len(ops) == 2 * 2 * 17


@pytest.mark.parametrize(
    "keep", ["label", "data", "results/opgraph", "results/prediction", "label+results/opgraph"]
)
def test_any_part_of_the_layout_alone(layout, tmp_path, keep):
    layout.complete()
    part = tmp_path / "part" / "neusight"
    for name in keep.split("+"):
        (part / name).parent.mkdir(parents=True, exist_ok=True)
        (layout.root / name).rename(part / name)
    data = neusight.read(part)
    assert (len(data.kernels) > 0) == (keep == "data")
    assert (len(data.steps) > 0) == keep.startswith("label")
    assert (len(data.peers) > 0) == (keep == "results/prediction")
    assert bool(data.graphs) == (len(data.ops) > 0) == (keep == "label+results/opgraph")


def test_the_layout_may_lie_in_a_data_folder_or_a_clone(layout, tmp_path):
    layout.sweep("add", [(0.04, 128, 256)])
    ids = neusight.read(layout.root).kernels["row_id"].tolist()
    assert neusight.read(tmp_path).kernels["row_id"].tolist() == ids
    clone = tmp_path / "clone" / "scripts" / "asplos"
    clone.parent.mkdir(parents=True)
    layout.root.rename(clone)
    assert neusight.read(tmp_path / "clone").kernels["row_id"].tolist() == ids
