"""Evaluation with an adapter: its device is corrected, rows that it was fitted on not scored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from predictor.errors import AdapterError
from predictor.fit.adapted_rows import FITTED
from predictor.fit.adapting import fit_from_rows
from predictor.fit.evaluate import evaluate

CHECKPOINT = "neusight-protocol-v2"
DEVICE, OTHER = "nvidia-l4", "nvidia-t4"


def products(device: str, sizes: list[int], us_per_gflop: float) -> pd.DataFrame:
    m = np.array(sizes)
    return pd.DataFrame({
        "device": device, "op": "linear", "batch": 1, "m": m, "n": 2048, "k": 1024,
        "dtype": "fp32", "context": "device",
        "latency_us": us_per_gflop * 2e-9 * m * 2048 * 1024 + 20.0,
    })  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of two devices, some of one of them apart in a file of their own."""
    path = tmp_path_factory.mktemp("adapted")
    (path / "rows").mkdir()
    few = products(DEVICE, [768, 1536, 2304, 3072], 200.0)
    few.to_csv(path / "few.csv", index=False)
    more = products(DEVICE, [1024, 2048, 4096], 200.0)
    other = products(OTHER, [1024, 2048, 4096], 300.0)
    pd.concat([few, more, other]).to_csv(path / "rows" / "all.csv", index=False)
    return path


def test_an_evaluation_with_an_adapter(folder: Path) -> None:
    adapter = fit_from_rows(DEVICE, [folder / "few.csv"], checkpoint=CHECKPOINT)
    plain = evaluate("rows", [folder / "rows"], checkpoint=CHECKPOINT)
    own = evaluate("rows", [folder / "rows"], checkpoint=CHECKPOINT, adapter=adapter)
    assert own.to_json()["adapter"] == adapter.line
    before, after = (e.scored.rows.set_index("row_id") for e in (plain, own))
    here = before["device"] == DEVICE
    for name in ("predicted_us", "lower_us", "upper_us"):
        assert before.loc[~here, name].tolist() == after.loc[~here, name].tolist()
    assert (after.loc[here, "reason"] == FITTED).sum() == 4
    assert not after.loc[after["reason"] == FITTED, "scored"].any()
    assert own.scored.unscored[FITTED] == 4

    def error(rows: pd.DataFrame) -> float:
        new = rows[here & (after["reason"] != FITTED)]
        return float((new["predicted_us"] / new["measured_us"] - 1).abs().mean())

    assert error(after) < error(before)
    ends = after.loc[here]
    assert (ends["lower_us"] <= ends["predicted_us"]).all()
    assert (ends["predicted_us"] <= ends["upper_us"]).all()


def test_an_adapter_of_no_row_is_refused(folder: Path, tmp_path: Path) -> None:
    adapter = fit_from_rows(DEVICE, [folder / "few.csv"], checkpoint=CHECKPOINT)
    rest = products(OTHER, [1024, 2048], 300.0)
    rest.to_csv(tmp_path / "t4.csv", index=False)
    with pytest.raises(AdapterError, match="no row is"):
        evaluate("rows", [tmp_path / "t4.csv"], checkpoint=CHECKPOINT, adapter=adapter)


def test_a_wrong_adapter_is_refused_before_rows_are_read(folder: Path, tmp_path: Path) -> None:
    nowhere = [tmp_path / "no-rows"]
    with pytest.raises(AdapterError, match="is no adapter"):
        evaluate("rows", nowhere, checkpoint=CHECKPOINT, adapter=tmp_path)
    adapter = fit_from_rows(DEVICE, [folder / "few.csv"], checkpoint=CHECKPOINT)
    with pytest.raises(AdapterError, match="belongs to checkpoint"):
        evaluate("rows", nowhere, checkpoint="own-families-v1", adapter=adapter)
