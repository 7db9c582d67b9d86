"""The published HW-GPT-Bench tables as they stand; runs where PREDICTOR_TRACES names their folder.

The counts are those of the files that `datasets/gptbench/manifest.json` lists.
"""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest

from predictor.features.table import DIM_INDEX, OP_NAMES
from predictor.traces.graph_bank import load_bank
from predictor.traces.merge import merged
from predictor.traces.sources import gptbench
from predictor.zoo.hw_gpt import HwGptConfig

FOLDER = os.environ.get("PREDICTOR_TRACES", "")
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="set PREDICTOR_TRACES to a folder that holds the published tables"
)
GPUS, HOSTS, ARCHITECTURES = 6, 5, 30_000


@pytest.fixture(scope="module")
def steps():
    data = merged(gptbench.parts(Path(FOLDER)))
    assert data.dropped == {"unknown_device": HOSTS * ARCHITECTURES}
    return data.steps


def test_rows_kept(steps):
    assert steps["device"].value_counts().to_dict() == {
        "nvidia-a100-sxm-40gb": ARCHITECTURES,
        "nvidia-a40": ARCHITECTURES,
        "nvidia-p100-pcie-16gb": ARCHITECTURES,
        "nvidia-rtx-2080": ARCHITECTURES,
        "nvidia-rtx-a6000": ARCHITECTURES,
        "nvidia-v100-sxm2-32gb": ARCHITECTURES,
    }


def test_sampled_rows_have_a_graph_of_the_bank(steps):
    bank = load_bank(source="gptbench")
    with_graph = steps[steps["graph"] != ""]
    assert len(with_graph) == GPUS * len(bank.index)
    assert set(with_graph["graph"]) <= set(bank.ids)
    assert (with_graph["flag"] == "").sum() == (GPUS - 1) * len(bank.index)
    assert steps.loc[steps["graph"] == "", "flag"].str.startswith("not_sampled").all()


def test_parameters_and_multiply_adds_are_those_of_the_tables():
    for size, path in gptbench.files_of(Path(FOLDER))[1].items():
        tokens = gptbench.BATCH[size] * gptbench.SEQ
        for row in pd.read_csv(path).to_dict("records"):
            config = HwGptConfig.of(row["embed_dim"], row["n_head"], row["mlp_ratio"], row["bias"])
            assert config.parameters == row["params"]
            assert config.macs(tokens) == row["macs"]


def test_graphs_of_the_bank_multiply_what_the_tables_count():
    bank = load_bank(source="gptbench")
    _, files = gptbench.files_of(Path(FOLDER))
    macs = {
        gptbench.model_name(size, row["arch_index"]): row["macs"]
        for size, path in files.items() for row in pd.read_csv(path).to_dict("records")
    }  # fmt: skip
    for row in bank.index.to_dict("records"):
        table = bank.graph(row["graph"]).table(row["batch_from"], "bf16")
        products = [OP_NAMES[op] in ("linear", "matmul") for op in table.op]
        dims = table.dims[products]
        found = dims[:, DIM_INDEX["m"]] * dims[:, DIM_INDEX["n"]] * dims[:, DIM_INDEX["k"]]
        assert found.sum() == macs[row["model"]]
