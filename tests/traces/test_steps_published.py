"""The published step tables as they stand; runs where PREDICTOR_TRACES names their folder.

The counts are those of the files that `datasets/steps/manifest.json` lists.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from predictor.traces.merge import merged
from predictor.traces.sources import steps

FOLDER = os.environ.get("PREDICTOR_TRACES", "")
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="set PREDICTOR_TRACES to a folder that holds the published step tables"
)
KEPT = {
    "hespas_ispass2026": 22, "llm_foundry": 139, "maxtext_tpu_tables": 54, "megatron_bridge": 10,
    "mlperf_training": 1_094, "torchtitan": 32, "tpu_mlperf_training": 36, "tpu_recipes": 25,
}  # fmt: skip


@pytest.fixture(scope="module")
def data():
    return merged(steps.parts(Path(FOLDER)))


def test_rows_kept_by_table(data):
    folders = data.steps["file"].str.partition("/")[0]
    assert folders.value_counts().to_dict() == KEPT


def test_rows_dropped_by_rule(data):
    assert data.dropped == {
        "no_step_time": 843 + 8, "tokens_and_flops_disagree": 1, "not_usable": 20,
    }  # fmt: skip


def test_flags(data):
    flags = data.steps["flag"].str.split("+").explode().value_counts().to_dict()
    assert flags == {
        "": 511, "config_unknown": 776, "derived_from_epoch": 125, "attention_uncertain": 46,
        "derived": 46, "inconsistent": 40, "seq_assumed": 24, "includes_evaluation": 16,
        "per_sequence": 8, "rounded": 2, "batch_from_log": 1, "devices_from_log": 1,
    }  # fmt: skip


def test_plans_multiply_to_the_devices(data):
    planned = data.steps[data.steps["plan"] != ""]
    assert len(planned) > 500
    for text, devices in zip(planned["plan"], planned["devices"], strict=True):
        axes = dict(axis.split("=") for axis in text.split(","))
        assert math.prod(int(n) for a, n in axes.items() if a not in ("ep", "vp")) == devices


def test_steps_are_whole_training_steps_of_known_devices(data):
    assert data.steps["latency_us"].between(1e3, 3.1e8).all()  # 2 ms to 300 s
    assert data.steps["devices"].notna().all()
    assert not data.steps["row_id"].duplicated().any()
