"""Generations left out: rows that one scale sets apart, and a real run on samples."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from predictor.calibrate.readings import Readings
from predictor.calibrate.terms import HOST, PLACE, TERMS

ROOT = Path(__file__).parents[2]
TRAINING, SAMPLES = ROOT / "training", ROOT / "tests" / "traces"


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    names = ("tpu_generations", "capture_tpugraphs")
    sys.path.insert(0, str(TRAINING))
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(TRAINING))
        for name in names:
            sys.modules.pop(name, None)


def test_a_device_that_is_slow_throughout_is_told_by_few_rows(scripts):
    n = 40
    predicted = np.exp(np.random.default_rng(0).uniform(1, 5, n))
    terms = np.zeros((n, len(TERMS)), dtype=np.float32)
    terms[:, PLACE["head 1"]] = 0.5
    readings = Readings(
        log_predicted_N=np.log(predicted), log_measured_N=np.log(2.0 * predicted),
        kind_N=np.zeros(n, dtype=np.int64), start_N=np.arange(n + 1), part_us_P=predicted,
        part_PT=terms, host_us_N=np.full(n, 1e-3), sharpness_N=np.full(n, 4.0),
        row_NT=np.zeros((n, len(TERMS)), dtype=np.float32), host_term=HOST,
    )  # fmt: skip
    rows = scripts["tpu_generations"].Rows(
        facts=pd.DataFrame({"source": ["x"] * n}), readings=readings,
        datasheet_us_N=predicted / 3.0, scale=6.0,
    )  # fmt: skip
    found = scripts["tpu_generations"].errors(rows, few=5, draws=3)
    assert found["n"] == n
    assert found["zero_shot"] == pytest.approx(0.5)
    assert found["roofline"] == pytest.approx(0.0, abs=1e-9)
    assert found["after_5"] < 0.1 and found["suggested_5"] < 0.1
    assert found["roofline_5"] == pytest.approx(0.0, abs=1e-9)


def test_the_script_leaves_each_generation_out(scripts, tmp_path, capsys):
    for source, folder in (
        ("tpugraphs", "tpu_graphs_testdata"), ("scalesim", "scalesim_tpu_v4"),
        ("tpurecipes", "tpu_recipes"),
    ):  # fmt: skip
        shutil.copytree(SAMPLES / f"{source}_sample", tmp_path / folder)
    recipe = tmp_path / "some.toml"
    recipe.write_text(
        'name = "some-v1"\nsplit = "tpus"\nexclude_flags = ["fit+inconsistent"]\n'
        'sources = ["tpugraphs", "scalesim", "tpurecipes"]\n'
    )
    out = tmp_path / "found.json"
    arguments = [str(recipe), "--data", str(tmp_path), "--json", str(out), "--draws", "2"]
    assert scripts["tpu_generations"].main(arguments) == 0
    found = json.loads(out.read_text())
    assert {name: row["n"] for name, row in found.items()} == {
        "google-tpu-v3-core": 4, "google-tpu-v4": 32, "google-tpu-v6e": 2,
    }  # fmt: skip
    assert "after_5" in found["google-tpu-v4"] and "after_5" not in found["google-tpu-v6e"]
    assert "google-tpu-v4" in capsys.readouterr().out


def test_fields_of_a_protocol_buffer_are_told_apart(scripts):
    # field 1: three bytes; 2: the number 300; 3: eight bytes; 5: four bytes; 16: one byte
    content = (
        b"\x0a\x03abc" + b"\x10\xac\x02" + b"\x19" + b"12345678" + b"\x2d" + b"1234"
        + b"\x82\x01\x01z"
    )  # fmt: skip
    assert list(scripts["capture_tpugraphs"].fields(content)) == [(1, b"abc"), (16, b"z")]
