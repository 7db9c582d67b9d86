"""A report on a small run: networks of its folds, scores of every method, page and resumption."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from predictor.errors import DataError, RecipeError
from predictor.fit.recipe import load_recipe
from predictor.fit.transfer import TransferReport, default_recipe, transfer_report
from predictor.fit.transfer_curves import OURS, Plan, errors
from predictor.fit.transfer_networks import UnseenNetworks, of_checkpoint, of_run
from predictor.fit.transfer_pages import page, summary, to_json
from predictor.fit.transfer_rows import DeviceRows, device_rows, newest, step_inputs
from predictor.fit.transfer_suites import SUITES, suites_of
from predictor.fit.transfer_tuning import predicted_log_us, tuned
from predictor.nn.ensemble import Ensemble
from predictor.traces.sources.registry import read_source

PLAN = Plan(budgets=(0, 1, 10), draws=3, costly_budgets=(10,), costly_draws=1)
T4, V100 = "nvidia-t4", "nvidia-v100-pcie-32gb"


@pytest.fixture(scope="session")
def report(
    run_dir: Path, data_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TransferReport, Path]:
    out = tmp_path_factory.mktemp("transfer")
    return transfer_report([data_dir], out, run=run_dir, plan=PLAN), out


@pytest.fixture(scope="session")
def rows(data_dir: Path) -> DeviceRows:
    data = read_source("neusight", [data_dir])
    found = device_rows(data, SUITES["neusight-kernels"], "alone", T4, flags=(), depth=1)
    assert found is not None
    return found


@pytest.fixture(scope="session")
def unseen(run_dir: Path) -> UnseenNetworks:
    return next(n for n in of_run(run_dir) if n.never_saw(T4))


def test_folds_predict_as_they_did_when_they_were_fitted(
    run_dir: Path, unseen: UnseenNetworks, rows: DeviceRows
) -> None:
    kept = pd.read_parquet(run_dir / "folds" / f"device-{T4}" / "kernels.parquet")
    found = rows.readings(unseen.networks, None)
    then = kept.set_index("row_id").loc[rows.frame["row_id"], "predicted_us"].to_numpy()
    np.testing.assert_allclose(np.exp(found.log_predicted_N), then, rtol=1e-4)


def test_each_device_is_scored_by_networks_without_it(
    report: tuple[TransferReport, Path], run_dir: Path
) -> None:
    networks = {n.fold: n for n in of_run(run_dir)}
    scores = report[0].scores
    assert {s["device"] for s in scores} == {T4, V100}
    assert all(networks[s["fold"]].never_saw(s["device"]) for s in scores)
    assert not any(networks[s["fold"]].twins_seen(s["device"]) for s in scores)


def test_all_methods_and_suites_are_there(report: tuple[TransferReport, Path]) -> None:
    found = summary(report[0].scores)
    kernels = found[found["suite"] == "neusight-kernels"]
    assert {OURS, "flops_law", "gradient_boosting", "fine_tuning", "bandwidth", "proxy"} == set(
        kernels["method"]
    )
    assert {"neusight-steps", "neusight-ops-to-steps", "neusight-alone-to-steps"} <= set(
        found["suite"]
    )
    across = found[found["suite"] == "neusight-ops-to-steps"]
    assert set(across["method"]) == {OURS}


def test_measured_rows_are_never_scored(
    report: tuple[TransferReport, Path], rows: DeviceRows
) -> None:
    n = len(rows.frame)
    of = [
        s
        for s in report[0].scores
        if s["suite"] == "neusight-kernels" and s["device"] == T4 and s["method"] == OURS
    ]
    assert {s["n"] for s in of if s["k"] == 0} == {n}
    assert all(s["n"] <= n - s["k"] for s in of)


def test_an_adapter_helps_where_a_device_is_off_by_a_factor(
    report: tuple[TransferReport, Path],
) -> None:
    found = summary(report[0].scores)
    own = found[(found["suite"] == "neusight-kernels") & (found["method"] == OURS)]
    by_k = own.groupby("k")["mape"].mean()
    assert by_k[10] < by_k[0]


def test_a_report_goes_on_without_its_data(
    report: tuple[TransferReport, Path], run_dir: Path, data_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "again"
    shutil.copytree(report[1], out)
    empty = tmp_path / "neusight"
    empty.mkdir()
    again = transfer_report([tmp_path], out, run=run_dir, plan=PLAN)
    assert again.scores == json.loads(json.dumps(report[0].scores))


def test_another_plan_needs_another_folder(
    report: tuple[TransferReport, Path], run_dir: Path, data_dir: Path
) -> None:
    with pytest.raises(RecipeError, match="another recipe"):
        transfer_report([data_dir], report[1], run=run_dir, plan=Plan(draws=1))


def test_the_page_tells_every_device(report: tuple[TransferReport, Path]) -> None:
    text = page(report[0].scores, PLAN, ("a note",))
    assert f"| {T4} | " in text and f"| {V100} | " in text
    assert "## neusight-kernels: kernels alone → kernels alone" in text
    assert "- a note" in text
    for section in text.split("## ")[1:]:
        assert len({line.count("|") for line in section.splitlines() if line[:1] == "|"}) == 1


def test_json_holds_no_nan(report: tuple[TransferReport, Path]) -> None:
    values = to_json(report[0].scores, PLAN, ())
    text = json.dumps(values, allow_nan=False)
    assert len(json.loads(text)["summary"]) == len(summary(report[0].scores))


def test_files_are_written(report: tuple[TransferReport, Path], tmp_path: Path) -> None:
    report[0].write(tmp_path / "out", tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == (tmp_path / "out" / "report.md").read_text()
    assert "plotly" in (tmp_path / "out" / "report.html").read_text()


def test_fine_tuning_fits_what_it_is_given(unseen: UnseenNetworks, rows: DeviceRows) -> None:
    assert isinstance(unseen.networks, Ensemble)
    at = np.arange(0, len(rows.frame), 5)
    before = predicted_log_us(unseen.networks, rows, at)
    after = predicted_log_us(tuned(unseen.networks, rows, at), rows, at)
    off = np.abs(after - rows.log_us_N[at]).mean()
    assert off < np.abs(before - rows.log_us_N[at]).mean()
    np.testing.assert_array_equal(predicted_log_us(unseen.networks, rows, at), before)


def test_a_tuned_prediction_starts_from_the_reading(
    unseen: UnseenNetworks, rows: DeviceRows
) -> None:
    assert isinstance(unseen.networks, Ensemble)
    at = np.arange(len(rows.frame))
    found = rows.readings(unseen.networks, None).log_predicted_N
    np.testing.assert_allclose(predicted_log_us(unseen.networks, rows, at), found, rtol=1e-4)


def test_a_checkpoint_speaks_of_devices_it_did_not_see() -> None:
    found = of_checkpoint("neusight-protocol-v2")
    assert found.never_saw("nvidia-l4") and not found.twins_seen("nvidia-l4")
    assert found.never_saw("nvidia-a100-pcie-80gb")
    assert found.twins_seen("nvidia-a100-pcie-80gb") == ("nvidia-a100-pcie-40gb",)
    assert not found.never_saw(T4)


def test_a_run_whose_folds_were_removed(run_dir: Path, tmp_path: Path) -> None:
    broken = tmp_path / "run"
    shutil.copytree(run_dir, broken)
    shutil.rmtree(broken / "folds" / f"device-{T4}.fit")
    with pytest.raises(DataError, match="train the run again"):
        of_run(broken)
    with pytest.raises(DataError, match="not the folder of a run"):
        of_run(tmp_path)


def test_errors_count_what_was_predicted() -> None:
    found = errors(np.array([0.0, np.nan, np.log(2.0), np.nan]), np.zeros(4))
    assert found == {"n": 2, "share": 0.5, "mape": 0.5, "median_ape": 0.5}
    assert errors(np.array([np.nan]), np.zeros(1))["mape"] is None


def test_inputs_of_a_step_are_weighted_by_time() -> None:
    x = np.array([[1.0], [3.0], [5.0]], dtype=np.float32)
    base = np.array([10.0, 30.0, 7.0], dtype=np.float32)
    token = np.zeros(3, dtype=np.int64)
    found, total = step_inputs(x, token, base, np.array([1.0, 1.0, 2.0]), np.array([0, 0, 1]), 2)
    np.testing.assert_allclose(total, [40.0, 14.0])
    np.testing.assert_allclose(found[:, 0], [2.5, 5.0])
    np.testing.assert_allclose(np.exp(found[:, -1]), [2.0, 2.0])


def test_the_newest_release_of_each_setting() -> None:
    frame = pd.DataFrame({
        "device": "a", "mode": ["infer", "infer", "train"], "execution": "eager",
        "dtype": "fp32", "layout": "", "framework_version": ["2.4.0", "2.10.0", "1.12.0"],
    })  # fmt: skip
    assert newest(frame).index.tolist() == [1, 2]


def test_unknown_suites_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no transfer suite 'x'; known: timm"):
        suites_of(["x"], [tmp_path])
    with pytest.raises(DataError, match="none of the sources"):
        suites_of([], [tmp_path])


def test_the_recipe_that_comes_along_is_sound() -> None:
    recipe = load_recipe(default_recipe())
    assert recipe.calibration.device_folds and not recipe.calibration.model_folds
    assert {suite.source for suite in SUITES.values()} <= set(recipe.sources)
