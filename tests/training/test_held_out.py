"""The page of what a run's cross-validation held out."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

TRAINING = Path(__file__).parents[2] / "training"
DEVICES = ("nvidia-t4", "nvidia-l4", "nvidia-rtx-3090")


@pytest.fixture(scope="module")
def held_out() -> ModuleType:
    spec = importlib.util.spec_from_file_location("held_out_page", TRAINING / "held_out.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run: kernels 10% slow on all devices, one far outside of training."""
    n = 40 * len(DEVICES)
    measured = np.linspace(100.0, 200.0, n)
    kernels = pd.DataFrame({
        "row_id": [f"rows:{i}" for i in range(n)], "device": np.repeat(DEVICES, 40),
        "op": "matmul", "context": "isolated", "dtype": "bf16", "framework": "pytorch",
        "measured_us": measured, "predicted_us": 1.1 * measured, "lower_us": measured,
        "upper_us": 1.2 * measured, "base_us": 0.5 * measured, "outside": [3.0] + [0.0] * (n - 1),
        "fold_kind": "device", "fold": "a", "group": np.repeat(DEVICES, 40),
    })  # fmt: skip
    folder = tmp_path / "run"
    (folder / "held_out").mkdir(parents=True)
    kernels.to_parquet(folder / "held_out/kernels.parquet")
    for empty in ("ops", "steps"):
        pd.DataFrame().to_parquet(folder / f"held_out/{empty}.parquet")
    (folder / "release").mkdir()
    training = {
        "network": {"members": 3}, "optimizer": {"epochs": 10},
        "calibration": {"most_folds": 3, "epochs": 2},
    }  # fmt: skip
    config = {"name": "tried-v1", "calibration": {"level": 0.9}, "training": training}
    (folder / "release/config.json").write_text(json.dumps(config))
    return folder


def test_the_page_tells_errors_by_source_and_device(
    held_out: ModuleType, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "page.md"
    assert held_out.main([str(run), "--out", str(out)]) == 0
    text = out.read_text()
    assert "# tried-v1: devices, families and shapes that it did not see" in text
    assert "about a third of all devices" in text and "trained for\n  2 epochs" in text
    assert "| rows | nvidia-t4 | 40 | 10.0 | 10.0 | 10.0 | +10.0 | 50.0 |" in text
    assert "| rows | matmul | 120 | 10.0 |" in text
    assert "| rows | pytorch | bf16 | 120 | 10.0 |" in text
    assert "| above 2 | 1 | 0.095 | 0.095 |" in text
    assert "Whole steps" not in text


def test_a_folder_without_a_run_is_refused(
    held_out: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert held_out.main([str(tmp_path), "--out", str(tmp_path / "page.md")]) == 2
    assert "is not the folder of a finished run" in capsys.readouterr().err
