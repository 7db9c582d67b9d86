"""The published aiconfigurator tables as they stand; runs where PREDICTOR_TRACES names the folder.

The counts are those of the files that `datasets/aiconfigurator/manifest.json` lists.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from predictor.traces.sources import aiconfigurator

FOLDER = os.environ.get("PREDICTOR_TRACES", "")
MANIFEST = Path(__file__).parents[2] / "datasets" / "aiconfigurator" / "manifest.json"
pytestmark = pytest.mark.skipif(
    not FOLDER,
    reason="set PREDICTOR_TRACES to a folder that holds the published aiconfigurator data",
)


@pytest.fixture(scope="module")
def counted():
    """Counts of all parts: rows are not kept."""
    kept, flags, ops, dropped, files = Counter(), Counter(), Counter(), Counter(), {}
    largest = 0
    for part in aiconfigurator.parts(Path(FOLDER)):
        rows = part.kernels
        largest = max(largest, len(rows))
        kept.update(rows["device"].value_counts().to_dict())
        flags.update(rows["flag"].value_counts().to_dict())
        ops.update(rows["op"].value_counts().to_dict())
        dropped.update(part.dropped)
        files.update(part.files)
    return {"kept": kept, "flags": flags, "ops": ops, "dropped": dropped, "files": files,
            "largest": largest}  # fmt: skip


def test_every_row_is_kept_or_counted(counted):
    read = sum(file.rows for file in counted["files"].values())
    assert read == 8_962_897
    assert counted["kept"].total() == 8_635_207
    assert counted["kept"].total() + counted["dropped"].total() == read
    assert counted["largest"] <= aiconfigurator.PART_ROWS


def test_rules(counted):
    assert counted["dropped"] == {
        "module_of_several_kernels": 304_183, "expert_exchange": 18_864,
        "routing_not_published": 4_643,
    }  # fmt: skip
    assert counted["flags"] == {
        "": 8_233_501, "host_bound": 194_817, "cache_warm": 136_203, "window_unknown": 69_510,
        "topology": 1_125, "above_peak": 51,
    }  # fmt: skip


def test_ops_and_devices(counted):
    assert counted["ops"] == {
        "attention": 3_035_710, "moe": 2_711_576, "matmul": 2_588_190, "latent_attention": 82_244,
        "conv": 74_499, "delta_rule": 68_951, "quantize": 32_560, "bmm": 20_776,
        "all_reduce": 9_785, "all_gather": 3_546, "all_to_all": 3_546, "reduce_scatter": 3_519,
        "ssd": 305,
    }  # fmt: skip
    assert counted["kept"]["nvidia-a100-sxm-80gb"] == 202_714
    assert len(counted["kept"]) == 8


def test_files_are_those_of_the_manifest(counted):
    folders = json.loads(MANIFEST.read_text())["folders"]
    listed = {f"{d}/{n}": tuple(v) for d, names in folders.items() for n, v in names.items()}
    assert {name: (f.rows, f.sha256) for name, f in counted["files"].items()} == listed
