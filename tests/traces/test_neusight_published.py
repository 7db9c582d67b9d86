"""The published NeuSight data as it stands; runs where PREDICTOR_TRACES names its folder.

The counts are those of the files that `datasets/neusight/manifest.json` lists.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from predictor.traces.sources import neusight
from predictor.traces.sources.neusight_layout import open_layout

FOLDER = os.environ.get("PREDICTOR_TRACES", "")
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="set PREDICTOR_TRACES to a folder that holds the published NeuSight data"
)


@pytest.fixture(scope="module")
def data():
    return neusight.read(Path(FOLDER))


def test_rows_kept(data):
    assert len(data.kernels) == 331_882
    assert len(data.steps) == 99
    assert len(data.ops) == 8_753
    assert len(data.peers) == 489
    assert data.dropped == {"op_not_of_graph": 40}


def test_flags(data):
    assert data.kernels["flag"].value_counts().to_dict() == {"": 320_292, "throttled": 11_590}
    assert data.steps["flag"].value_counts().to_dict() == {
        "": 85, "compiled": 8, "distributed": 3, "no_graph": 3,
    }  # fmt: skip
    assert data.kernels.loc[data.kernels["flag"] == "throttled", "device"].unique().tolist() == [
        "nvidia-tesla-p4"
    ]


def test_steps_that_all_four_peers_predicted(data):
    steps = data.steps[(data.steps["flag"] == "") & (data.steps["plan"] == "")]
    peers = data.peers.groupby(["device", "graph"])["peer"].nunique()
    complete = [
        peers.get((d, g), 0) == len(neusight.PEERS)
        for d, g in zip(steps["device"], steps["graph"], strict=True)
    ]
    scored = steps[complete]
    assert len(scored) == 58
    assert scored["device"].str.startswith("nvidia-").all()
    assert scored["graph"].isin(list(data.graphs)).all()


def test_published_op_predictions_add_up_to_the_published_totals(data):
    """NeuSight's own sums: ops times repetitions, backward with its accumulation."""
    layout = open_layout(Path(FOLDER))
    checked = 0
    for peer in data.peers[data.peers["peer"] == "neusight"].to_dict("records"):
        graph = data.graphs.get(peer["graph"])
        if graph is None or peer["graph"].startswith("switch"):
            continue
        paths = [
            p for p in layout.predictions("*")
            if p.parent.name == "neusight" and p.name.split(".csv")[0] == peer["graph"]
            and layout.device(p.parent.parent.name) == peer["device"]
        ]  # fmt: skip
        table = layout.reader.csv(paths[0]).drop_duplicates("Name").set_index("Name")
        published = table.loc[list(graph.nodes)]
        for column, total in (("fw_latency", "forward_us"), ("bwall_latency", "backward_us")):
            ours = float((published[column].to_numpy() * graph.node_weight).sum()) * 1e3
            assert ours == pytest.approx(peer[total], rel=1e-6, abs=1e-6), (peer["graph"], column)
        checked += 1
    assert checked >= 80


@pytest.mark.parametrize(
    "part",
    ["data/dataset/test", "data/dataset_amd", "label/NVIDIA_L4", "results/opgraph",
     "label/NVIDIA_L4+results/opgraph"],
)  # fmt: skip
def test_part_of_the_layout(data, tmp_path, part):
    root = open_layout(Path(FOLDER)).root
    for name in part.split("+"):
        target = tmp_path / "neusight" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(root / name)
    found = neusight.read(tmp_path)
    assert not found.dropped
    for table in ("kernels", "steps"):
        own, whole = getattr(found, table), getattr(data, table).set_index("row_id")
        expected = whole.loc[own["row_id"]].reset_index()
        columns = ["row_id", "device", "latency_us"]
        pd.testing.assert_frame_equal(own[columns], expected[columns])
    if "+" in part:
        graphs = [data.graphs[name] for name in found.graphs]
        ours = list(found.graphs.values())
        assert all(np.array_equal(a.weight, b.weight) for a, b in zip(ours, graphs, strict=True))
        assert len(found.ops)
