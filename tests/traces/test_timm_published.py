"""The published timm tables as they stand; runs where PREDICTOR_TRACES names their folder.

The counts are those of the files that `datasets/timm/manifest.json` lists.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from predictor.traces.graph_bank import load_bank
from predictor.traces.merge import merged
from predictor.traces.sources.timm import parts

FOLDER = os.environ.get("PREDICTOR_TRACES", "")
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="set PREDICTOR_TRACES to a folder that holds timm_bench"
)
GROUPS = {
    ("nvidia-rtx-3090", "infer", "amp-fp16", "eager", "nchw"): 5_479,
    ("nvidia-rtx-3090", "infer", "amp-fp16", "eager", "nhwc"): 5_365,
    ("nvidia-rtx-3090", "train", "amp-fp16", "eager", "nchw"): 2_226,
    ("nvidia-rtx-3090", "train", "amp-fp16", "eager", "nhwc"): 2_190,
    ("nvidia-rtx-4090", "infer", "amp-fp16", "eager", "nchw"): 2_708,
    ("nvidia-rtx-4090", "infer", "amp-fp16", "eager", "nhwc"): 1_266,
    ("nvidia-rtx-4090", "infer", "amp-fp16", "compiled", "nchw"): 2_705,
    ("nvidia-rtx-pro-6000-blackwell-maxq", "infer", "amp-fp16", "eager", "nchw"): 1_441,
    ("nvidia-rtx-pro-6000-blackwell-maxq", "infer", "amp-fp16", "compiled", "nchw"): 1_440,
    ("nvidia-rtx-pro-6000-blackwell-maxq", "infer", "amp-bf16", "compiled", "nchw"): 1_440,
    ("nvidia-rtx-pro-6000-blackwell-maxq", "infer", "bf16", "compiled", "nchw"): 1_434,
    ("intel-i9-10940x", "infer", "fp32", "compiled", "nchw"): 2_439,
}


@pytest.fixture(scope="module")
def data():
    return merged(parts(Path(FOLDER)))


def test_rows_kept_and_dropped(data):
    assert len(data.files) == 29
    assert sum(file.rows for file in data.files.values()) == 30_168
    assert len(data.steps) == 30_133
    assert data.dropped == {"throughput_disagrees": 33, "not_a_positive_number": 2}
    assert not data.left_out


def test_rows_of_each_campaign(data):
    columns = ["device", "mode", "dtype", "execution", "layout"]
    assert data.steps.groupby(columns).size().to_dict() == GROUPS


def test_nearly_all_names_that_timm_still_has_are_captured(data):
    """Under PyTorch 2 in fp16: at most 2% of the rows beyond the 28 names that are gone."""
    rows = data.steps[
        (data.steps["dtype"] == "amp-fp16") & ~data.steps["framework_version"].str.startswith("1.")
    ]
    missing = rows[rows["graph"] == ""]
    assert set(data.steps["flag"]) <= {"", "no_graph", "other_model"}
    assert ((data.steps["flag"] != "") == (data.steps["graph"] == "")).all()
    assert len(missing) < 0.02 * len(rows)


def test_graphs_are_of_the_bank(data):
    bank = load_bank()
    assert set(data.steps["graph"]) - {""} <= set(bank.ids)


def test_one_table_alone_gives_the_same_rows(data):
    name = "benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv"
    path = next(Path(FOLDER).glob(f"**/results/{name}"))
    alone = merged(parts(path)).steps
    whole = data.steps[data.steps["file"] == f"results/{name}"].reset_index(drop=True)
    assert len(alone) == 780
    assert alone.equals(whole)
