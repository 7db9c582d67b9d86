"""Evaluation: every row beside its baselines, and a summary that anyone can recompute."""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from predictor.checkpoint import load_release, save_release
from predictor.errors import CheckpointError, DataError, RecipeError
from predictor.fit.coverage import outside_of
from predictor.fit.data import load_data
from predictor.fit.evaluate import Evaluation, evaluate
from predictor.fit.evaluation_view import BRACKETS, STAR
from predictor.fit.groups import score_group, summarise
from predictor.fit.recipe import Recipe
from predictor.fit.rows import ScoredRows
from predictor.fit.samples import kernel_samples
from predictor.fit.scoring import score_kernels, score_steps
from predictor.fit.step_samples import step_samples
from predictor.nn.latency import load_predictor
from predictor.nn.training_range import MOST_OUTSIDE

KEYS = {
    "device", "target", "op_class", "phase", "mode", "n", "n_predicted", "mape", "median_ape",
    "p90_ape", "bias", "interval90_coverage", "baselines",
}  # fmt: skip
TOP = {"suite", "split", "checkpoint", "adapter", "groups"}
PEERS = {"neusight": 1.1, "habitat": 2.0, "micro": 1.5, "roofline_published": 0.6}
OWN_BASELINES = {"roofline", "gradient_boosting"}


@pytest.fixture(scope="module")
def release(run_dir: Path) -> Path:
    return run_dir / "release"


@pytest.fixture(scope="module")
def whole(release: Path, data_dir: Path) -> Evaluation:
    return evaluate("neusight", [data_dir], checkpoint=release)


@pytest.fixture(scope="module")
def report(whole: Evaluation) -> dict[str, Any]:
    return json.loads(json.dumps(whole.to_json(), allow_nan=False))


def select(groups: list[dict[str, Any]], **wanted: str) -> list[dict[str, Any]]:
    return [g for g in groups if all(g[k] == v for k, v in wanted.items())]


def one(groups: list[dict[str, Any]], **wanted: str) -> dict[str, Any]:
    (group,) = select(groups, **wanted)
    return group


def test_report_has_the_keys_of_the_contract(report: dict[str, Any]) -> None:
    assert set(report) >= TOP
    assert (report["suite"], report["split"]) == ("neusight", "neusight-protocol")
    assert (report["checkpoint"], report["adapter"]) == ("tiny-v1", None)
    assert report["groups"]
    for group in report["groups"]:
        assert set(group) >= KEYS
        assert group["target"] in ("kernel", "step")
        assert group["phase"] in ("total", "forward", "backward")
        assert 0 <= group["interval90_coverage"] <= 1
        assert 0 < group["n_predicted"] <= group["n"]
        assert 0 <= group["median_ape"] <= group["p90_ape"]
        assert group["mape"] >= abs(group["bias"])
        for baseline in group["baselines"].values():
            assert {"n", "mape", "median_ape", "p90_ape", "bias"} <= set(baseline)
            assert baseline["n"] <= group["n"]


def test_steps_and_kernels_by_device_and_over_all(report: dict[str, Any]) -> None:
    groups = report["groups"]
    for device, steps, part in (
        ("nvidia-v100-pcie-32gb", 4, "train"), ("nvidia-l4", 4, "test"), ("all", 12, "mixed"),
        ("test", 4, "test"),
    ):  # fmt: skip
        total = one(groups, device=device, target="step", mode="all", phase="total")
        assert (total["n"], total["part"]) == (steps, part)
        backward = one(groups, device=device, target="step", mode="all", phase="backward")
        assert backward["n"] == steps / 2  # inference has none
        assert one(groups, device=device, target="step", mode="train", phase="total")["n"] == (
            steps / 2
        )
        linear = one(groups, device=device, mode="isolated", op_class="matmul", phase="forward")
        assert linear["n"] == 60 * steps / 4
    assert {g["op_class"] for g in select(groups, mode="in_step", device="all")} == {
        "all", "linear", "batched_matmul", "softmax", "layernorm", "elementwise",
    }  # fmt: skip
    keys = [(g["device"], g["target"], g["mode"], g["phase"], g["op_class"]) for g in groups]
    assert len(set(keys)) == len(keys)


def test_published_predictions_stand_beside_the_same_rows(report: dict[str, Any]) -> None:
    for phase in ("total", "forward", "backward"):
        group = one(report["groups"], device="test", target="step", mode="all", phase=phase)
        assert set(group["baselines"]) == {*PEERS, *OWN_BASELINES, "sum_of_measured"}
        for peer, factor in PEERS.items():
            baseline = group["baselines"][peer]
            assert baseline["n"] == group["n"]
            assert baseline["mape"] == pytest.approx(abs(factor - 1))
            assert baseline["bias"] == pytest.approx(factor - 1)
        # steps are exactly the sums of their measured ops here
        assert group["baselines"]["sum_of_measured"]["mape"] == pytest.approx(0, abs=1e-6)
    ops = one(report["groups"], device="test", mode="in_step", op_class="linear", phase="forward")
    for peer, factor in PEERS.items():
        assert ops["baselines"][peer]["mape"] == pytest.approx(abs(factor - 1), rel=1e-5)
    kernels = one(report["groups"], device="test", mode="isolated", op_class="all")
    assert set(kernels["baselines"]) == OWN_BASELINES


def test_boosted_trees_learn_the_training_devices(report: dict[str, Any]) -> None:
    kernels = select(report["groups"], mode="isolated", op_class="all", part="train")
    assert len(kernels) == 2
    for group in kernels:
        trees, roofline = (group["baselines"][b]["mape"] for b in ("gradient_boosting", "roofline"))
        assert trees < 0.15 < roofline


def test_roofline_baseline_is_the_datasheet(whole: Evaluation) -> None:
    rows = whole.scored.rows
    add = rows[(rows["mode"] == "isolated") & (rows["op"] == "add")]
    # measured as factor * bytes / bandwidth + 8 us
    factor = add["device"].map({"nvidia-v100-pcie-32gb": 1.3, "nvidia-t4": 1.9, "nvidia-l4": 1.6})
    np.testing.assert_allclose(add["roofline_us"] * factor + 8.0, add["measured_us"], rtol=1e-4)


def test_rows_recompute_the_report(whole: Evaluation, tmp_path: Path) -> None:
    whole.write_rows(tmp_path / "rows.parquet")
    rows = pd.read_parquet(tmp_path / "rows.parquet")
    assert len(rows) == 450 + 3 * (2 * 6 + 2 * 11) + 3 * (
        2 * 2 + 2 * 3
    )  # `add` has no backward kernel
    columns = {"row_id", "device", "target", "measured_us", "predicted_us", "lower_us", "upper_us"}
    assert columns <= set(rows.columns)
    assert (rows["lower_us"] <= rows["predicted_us"]).all()
    assert (rows["predicted_us"] <= rows["upper_us"]).all()
    assert np.isfinite(rows["predicted_us"]).all()
    checked = 0
    for group in whole.groups:
        if group["device"] == "test":
            own = rows[rows["part"] == "test"]
        else:
            own = rows if group["device"] == "all" else rows[rows["device"] == group["device"]]
        for column in ("target", "mode", "phase", "op_class"):
            own = own[own[column] == group[column]] if group[column] != "all" else own
        error = (own["predicted_us"] / own["measured_us"] - 1).abs()
        assert group["n"] == len(own)
        assert group["mape"] == pytest.approx(error.mean())
        assert group["median_ape"] == pytest.approx(error.median())
        assert group["p90_ape"] == pytest.approx(error.quantile(0.9))
        inside = own["measured_us"].between(own["lower_us"], own["upper_us"])
        assert group["interval90_coverage"] == pytest.approx(inside.mean())
        for name, baseline in group["baselines"].items():
            off = (own[f"{name}_us"] / own["measured_us"] - 1).abs()
            assert baseline["mape"] == pytest.approx(off.mean())
        checked += 1
    assert checked == len(whole.groups) > 50


def half_width(scales: dict[str, float], phase: str, mode: str, outside: float) -> float:
    """The finest scale of an eager step on a GPU, those of its phase first."""
    names = [
        f"{p}{suffix}"
        for p in ("total", phase)
        for suffix in ("", "@gpu", "@gpu/wall", f"@gpu/wall/{mode}", f"@gpu/wall/{mode}/eager")
    ]
    return next(scales[n] for n in names[::-1] if n in scales) + scales["outside"] * outside


def test_rows_are_scored_as_the_release_says(whole: Evaluation, release: Path) -> None:
    """A step is the sum of its kernels: nothing in an evaluation is fitted to its rows."""
    half = load_release(release).config["calibration"]["step"]
    rows = whole.scored.rows
    steps = rows[rows["target"] == "step"]
    seen = steps["device"].isin(["nvidia-t4", "nvidia-v100-pcie-32gb"])
    assert (steps["seen"] == seen).all()
    for kind, part in (("seen", steps[seen]), ("unseen", steps[~seen])):
        width = [
            half_width(half[kind], *row)
            for row in part[["phase", "mode", "outside"]].itertuples(index=False)
        ]
        np.testing.assert_allclose(np.log(part["upper_us"] / part["predicted_us"]), width)
        np.testing.assert_allclose(np.log(part["predicted_us"] / part["lower_us"]), width)
    sums = steps.pivot_table(index="row_id", columns="phase", values="predicted_us")
    np.testing.assert_allclose(
        sums["total"], sums["forward"] + sums["backward"].fillna(0.0), rtol=1e-5
    )


def test_summary_is_of_the_test_part_with_intervals_that_hold_the_mean(
    report: dict[str, Any],
) -> None:
    summary = report["summary"]
    assert summary["devices"] == ["nvidia-l4"]
    for phase, n in (("total", 4), ("forward", 4), ("backward", 2)):
        entry = summary[phase]
        group = one(report["groups"], device="test", target="step", mode="all", phase=phase)
        assert entry["n"] == n
        assert entry["mape"] == pytest.approx(group["mape"])
        assert entry["neusight_mape"] == pytest.approx(0.1)
        for name in ("mape", "neusight_mape"):
            low, high = entry[f"{name}90"]
            assert low <= entry[name] * (1 + 1e-9)
            assert entry[name] <= high * (1 + 1e-9)
        low, high = entry["difference90"]
        assert low <= entry["mape"] - entry["neusight_mape"] + 1e-9 <= high + 2e-9


def test_evaluating_twice_gives_the_same(whole: Evaluation, release: Path, data_dir: Path) -> None:
    again = evaluate("neusight", [data_dir], checkpoint=release)
    assert json.dumps(again.to_json()) == json.dumps(whole.to_json())


def test_split_decides_parts_and_rows_of_the_trees(release: Path, data_dir: Path) -> None:
    result = evaluate("neusight", [data_dir], checkpoint=release, split="unseen-nvidia-t4")
    assert result.split == "unseen-nvidia-t4"
    parts = result.scored.rows.groupby("device")["part"].first().to_dict()
    assert parts == {
        "nvidia-t4": "test", "nvidia-v100-pcie-32gb": "train", "nvidia-l4": "train",
    }  # fmt: skip
    assert result.summary["devices"] == ["nvidia-t4"]
    everything = evaluate("neusight", [data_dir], checkpoint=release, split="all")
    assert set(everything.scored.rows["part"]) == {"train"}
    assert everything.summary["total"]["n"] == 12
    assert not select(everything.groups, device="test")


def with_graphs(layout: Any) -> Any:
    """The layout with op graphs and nothing else yet."""
    layout.graphs()
    return layout


def test_kernels_alone(release: Path, layout: Any) -> None:
    layout.kernels("NVIDIA L4")
    layout.kernels("Tesla T4")
    result = evaluate("neusight", [layout.root], checkpoint=release)
    assert {g["target"] for g in result.groups} == {"kernel"}
    assert {g["mode"] for g in result.groups} == {"isolated"}
    assert all("gradient_boosting" in g["baselines"] for g in result.groups)
    assert one(result.groups, device="test", op_class="all")["n"] == 150
    assert not {"total", "forward"} & set(result.summary)
    text(result)


def test_labels_alone_leave_the_trees_out(release: Path, layout: Any) -> None:
    with_graphs(layout).steps("NVIDIA L4")
    result = evaluate("neusight", [layout.root], checkpoint=release)
    assert any("gradient boosting left out: no training rows" in n for n in result.notes)
    assert result.scored.excluded["step_without_all_published_predictions"] == 4
    assert {g["mode"] for g in result.groups} == {"in_step"}
    assert all(set(g["baselines"]) == {"roofline"} for g in result.groups)
    # steps without published predictions are not scored, but their rows are written
    steps = result.scored.rows[result.scored.rows["target"] == "step"]
    assert (len(steps), steps["scored"].any()) == (10, False)
    text(result)


def test_steps_with_predictions_but_no_ops(release: Path, layout: Any) -> None:
    with_graphs(layout).steps("NVIDIA L4", ops=False)
    layout.predictions("NVIDIA L4")
    result = evaluate("neusight", [layout.root], checkpoint=release)
    assert {g["target"] for g in result.groups} == {"step"}
    total = one(result.groups, device="nvidia-l4", mode="all", phase="total")
    assert set(total["baselines"]) == {*PEERS, "roofline"}
    assert total["n"] == 4
    text(result)


def test_a_device_that_training_never_saw(release: Path, layout: Any) -> None:
    with_graphs(layout).kernels("NVIDIA L4")
    layout.steps("NVIDIA L4")
    layout.predictions("NVIDIA L4")
    result = evaluate("neusight", [layout.root], checkpoint=release)
    assert any("gradient boosting left out" in n for n in result.notes)
    assert not result.scored.rows["seen"].any()
    assert result.summary["total"]["n"] == 4


def test_steps_without_one_prediction_or_a_graph_are_counted(release: Path, layout: Any) -> None:
    with_graphs(layout).steps("NVIDIA L4")
    layout.predictions("NVIDIA L4")
    shutil.rmtree(layout.top / "results/prediction/NVIDIA_L4/habitat")
    (layout.top / "results/opgraph/toy-inf-1024-8.csv.gz").unlink()
    result = evaluate("neusight", [layout.root], checkpoint=release)
    excluded = result.to_json()["excluded"]
    assert excluded["step_no_graph"] == 1
    assert excluded["step_without_all_published_predictions"] == 3
    assert not select(result.groups, target="step")
    assert "1 step_no_graph" in text(result)


def test_fused_and_distributed_steps_are_counted(release: Path, layout: Any) -> None:
    with_graphs(layout).steps("NVIDIA L4")
    layout.predictions("NVIDIA L4")
    folder = layout.top / "label/NVIDIA_L4"
    for extra in ("toy-inf-1024-8-fusion", "toy-train-1024-8-dp4"):
        (folder / f"{extra}.json").write_text((folder / "toy-inf-1024-8.json").read_text())
    result = evaluate("neusight", [layout.root], checkpoint=release)
    assert result.scored.excluded["step_compiled"] == 1
    assert result.scored.excluded["step_distributed"] == 1
    assert one(result.groups, device="all", target="step", mode="all", phase="total")["n"] == 4


def test_data_in_two_folders_is_one_suite(
    release: Path, layout: Any, tmp_path: Path, whole: Evaluation, data_dir: Path
) -> None:
    for part in ("data", "label", "results"):
        target = tmp_path / f"only-{part}" / "neusight" / part
        shutil.copytree(data_dir / "neusight" / part, target)
    folders = [tmp_path / f"only-{part}" for part in ("data", "label", "results")]
    # a label finds its graph in its own folder, so labels and results go together
    shutil.copytree(folders[2] / "neusight/results", folders[1] / "neusight/results")
    result = evaluate("neusight", folders[:2], checkpoint=release)
    assert result.summary == whole.summary


def test_a_training_step_without_a_backward_time(release: Path, layout: Any) -> None:
    with_graphs(layout).steps("NVIDIA L4")
    layout.predictions("NVIDIA L4")
    label = layout.top / "label/NVIDIA_L4/toy-train-1024-8.json"
    label.write_text(json.dumps({**json.loads(label.read_text()), "bwall_latency": 0}))
    result = evaluate("neusight", [layout.root], checkpoint=release)
    assert one(result.groups, device="all", target="step", mode="all", phase="backward")["n"] == 1
    json.dumps(result.to_json(), allow_nan=False)


def test_nothing_to_score(release: Path, tmp_path: Path, layout: Any) -> None:
    with pytest.raises(DataError, match="no NeuSight layout"):
        evaluate("neusight", [tmp_path], checkpoint=release)
    layout.graphs()
    with pytest.raises(DataError, match="no row to score"):
        evaluate("neusight", [layout.root], checkpoint=release)


def test_wrong_names(release: Path, data_dir: Path) -> None:
    for split in ("warp", ""):
        with pytest.raises(RecipeError, match=f"unknown split '{split}'"):
            evaluate("neusight", [data_dir], checkpoint=release, split=split)
    with pytest.raises(DataError, match="no source 'warp'"):
        evaluate("warp", [data_dir], checkpoint=release)
    with pytest.raises(CheckpointError, match="no checkpoint 'warp'"):
        evaluate("neusight", [data_dir], checkpoint="warp")


def test_a_checkpoint_of_an_unknown_recipe(release: Path, data_dir: Path, tmp_path: Path) -> None:
    whole = load_release(release)
    config = {k: v for k, v in whole.config.items() if k not in
              ("format_version", "code_version", "weights_sha256")}  # fmt: skip
    for training in ({"name": "tiny-v1", "warp": 9}, {}, [1]):
        other = save_release(
            tmp_path / "other", config={**config, "training": training},
            tensors=whole.tensors, metrics={}, card="", overwrite=True,
        )  # fmt: skip
        with pytest.raises(CheckpointError, match="'tiny-v1', training"):
            evaluate("neusight", [data_dir], checkpoint=other.path)


def frame(**columns: object) -> pd.DataFrame:
    values = {"measured_us": [100.0, 100.0], "predicted_us": [110.0, 100.0],
              "lower_us": [90.0, 101.0], "upper_us": [120.0, 120.0], "learned": [1.0, 0.5],
              "trained": [True, False], "fitted": [True, True], **columns}  # fmt: skip
    return pd.DataFrame(values)


def test_a_group_by_hand() -> None:
    group = score_group(frame(neusight_us=[120.0, np.nan]))
    assert (group["n"], group["n_predicted"]) == (2, 2)
    assert group["mape"] == pytest.approx(0.05)
    assert group["interval90_coverage"] == 0.5
    assert (group["learned"], group["n_trained"]) == (0.75, 1)
    (name,) = group["baselines"]
    baseline = group["baselines"][name]  # on the first row alone, where the own error is a tenth
    assert (name, baseline["n"]) == ("neusight", 1)
    for error in ("mape", "median_ape", "p90_ape", "bias"):
        assert baseline[error] == pytest.approx(0.2)
    assert baseline["own_mape"] == pytest.approx(0.1)


def test_rows_without_a_prediction_are_counted_not_scored() -> None:
    group = score_group(frame(predicted_us=[110.0, np.nan]))
    assert (group["n"], group["n_predicted"]) == (2, 1)
    assert group["mape"] == pytest.approx(0.1)
    assert group["interval90_coverage"] == 1.0
    none = score_group(frame(predicted_us=[np.nan, np.nan]))
    assert (none["n"], none["n_predicted"]) == (2, 0)
    assert none["mape"] is None
    assert none["interval90_coverage"] is None
    keys = {"device": "d", "target": "step", "mode": "all", "phase": "total", "op_class": "all"}
    scored = ScoredRows(rows=pd.DataFrame(), dropped=Counter(), unscored=Counter())
    empty = Evaluation(
        suite="s", split="all", checkpoint="c", scored=scored, summary={}, notes=(),
        groups=[{**keys, "part": "test", **none}],
    )  # fmt: skip
    assert "–" in text(empty)


def test_no_rows_no_groups() -> None:
    assert summarise(pd.DataFrame()) == []


def text(result: Evaluation) -> str:
    """The report as a terminal shows it."""
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(result.view())
    shown = console.export_text()
    assert "nan" not in shown
    return shown


def test_tables_show_devices_baselines_and_what_was_left_out(whole: Evaluation) -> None:
    shown = text(whole)
    for expected in (
        "whole steps", "ops inside steps", "kernels alone by device", "nvidia-l4", "neusight",
        "gradient boosting", "sum of measured", "90% bootstrap by device and model", "MAPE",
        "median", "p90", "bias", "cover",
    ):  # fmt: skip
        assert expected in shown


def test_the_summary_of_steps_says_which_part_it_is_of(
    whole: Evaluation, release: Path, data_dir: Path
) -> None:
    assert whole.summary["part"] == "test"
    assert "steps of nvidia-l4, test part (90% bootstrap" in text(whole)
    everything = evaluate("neusight", [data_dir], checkpoint=release, split="all")
    assert everything.summary["part"] == "all"
    assert "all parts: none is held out (90% bootstrap" in text(everything)


def test_the_legend_explains_the_signs_that_there_are(whole: Evaluation) -> None:
    shown = text(whole)
    assert STAR in shown and BRACKETS not in " ".join(shown.split())
    groups = [replaced(g, n_trained=0, baselines={}) for g in whole.groups]
    plain = text(replace(whole, groups=groups))
    assert STAR not in plain and "cover: share inside" in plain
    lacking = {"n": 1, "mape": 0.5, "own_mape": 0.25, "n_fitted": 0}
    some = [replaced(g, n=2, n_trained=0, baselines={"roofline": lacking}) for g in whole.groups]
    assert BRACKETS in " ".join(text(replace(whole, groups=some)).split())
    assert "50.0% (25.0%)" in text(replace(whole, groups=some))


def replaced(group: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**group, **changes}


def test_one_device_is_not_shown_twice_and_modes_of_steps_stand_apart(
    whole: Evaluation, release: Path, layout: Any
) -> None:
    shown = text(whole)
    by_mode = shown.split("whole steps by mode")[1].split("ops inside steps")[0]
    assert [w for w in ("infer", "train") if w in by_mode] == ["infer", "train"]
    assert shown.split("kernels alone by device")[1].split("by class")[0].count("\n all") > 0
    with_graphs(layout).kernels("NVIDIA L4")
    layout.steps("NVIDIA L4")
    layout.predictions("NVIDIA L4")
    alone = text(evaluate("neusight", [layout.root], checkpoint=release))
    table = alone.split("kernels alone by device")[1].split("kernels alone by class")[0]
    assert "nvidia-l4" in table and "\n all" not in table
    assert "\n all" in alone.split("kernels alone by class")[1]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


OWN_KERNELS = """\
device,op,batch,m,n,k,numel,inputs,outputs,dtype,context,latency_us
nvidia-t4,linear,1,512,512,512,,,,fp32,isolated,80
nvidia-t4,linear,1,512,512,512,,,,fp16,isolated,60
nvidia-t4,linear,1,512,512,1024,,,,fp16,isolated,90
nvidia-t4,tanh,,,,,1048576,1,1,fp32,isolated,40
"""
OWN_STEPS = """\
device,model,mode,batch,dtype,measure,latency_us
nvidia-t4,mine,infer,8,fp32,wall,5000
nvidia-l4,mine,train,8,fp32,wall,9000
"""


@pytest.fixture(scope="module")
def own(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    folder = tmp_path_factory.mktemp("own")
    (folder / "kernels.csv").write_text(OWN_KERNELS)
    (folder / "steps.csv").write_text(OWN_STEPS)
    return evaluate("rows", [folder], checkpoint=release)


def test_what_the_checkpoint_did_not_learn_is_labelled_roofline(own: Evaluation) -> None:
    kernels = own.scored.rows[own.scored.rows["target"] == "kernel"]
    assert kernels["label"].tolist() == ["learned", "roofline", "roofline", "roofline"]
    assert kernels["learned"].tolist() == [1.0, 0.0, 0.0, 0.0]
    alone = one(own.groups, device="nvidia-t4", target="kernel", op_class="all")
    assert alone["learned"] == 0.25
    (note,) = [n for n in own.notes if "labelled roofline" in n]
    assert note.startswith("3 of 4 predicted rows are labelled roofline: tiny-v1 learned no row of")
    assert "gemm fp16, transcendental fp32" in note
    assert "25%" in text(own)


def test_learned_kernels_of_the_checkpoint_are_its_own(whole: Evaluation) -> None:
    assert set(whole.scored.rows["label"]) == {"learned"}
    assert not [n for n in whole.notes if "roofline" in n]


def test_a_step_without_a_graph_is_a_row_without_a_prediction(own: Evaluation) -> None:
    steps = own.scored.rows[own.scored.rows["target"] == "step"]
    assert steps["measured_us"].tolist() == [5000.0, 9000.0]
    assert steps["reason"].tolist() == ["without_graph"] * 2
    assert steps["predicted_us"].isna().all()
    assert steps["label"].tolist() == ["", ""]
    assert own.scored.unscored == Counter({"step_without_graph": 2})
    group = one(own.groups, device="nvidia-l4", target="step", mode="all")
    assert (group["n"], group["n_predicted"], group["mape"]) == (1, 0, None)
    assert "total" not in own.summary
    assert "without a prediction or score: 2 step_without_graph" in text(own)
    json.dumps(own.to_json(), allow_nan=False)


def test_a_suite_of_steps_without_graphs_says_so(release: Path, tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text(OWN_STEPS)
    shown = text(evaluate("rows", [tmp_path], checkpoint=release))
    assert "nothing to score" in shown
    assert "cover: share" not in shown


def test_flagged_steps_are_rows_that_are_not_scored(release: Path, layout: Any) -> None:
    with_graphs(layout).steps("NVIDIA L4")
    folder = layout.top / "label/NVIDIA_L4"
    (folder / "toy-inf-1024-8-fusion.json").write_text((folder / "toy-inf-1024-8.json").read_text())
    rows = evaluate("neusight", [layout.root], checkpoint=release).scored.rows
    (flagged,) = rows[rows["flag"] == "compiled"].to_dict("records")
    assert (flagged["reason"], flagged["scored"]) == ("compiled", False)
    assert np.isnan(flagged["predicted_us"])


def test_rows_that_were_trained_on_are_marked(whole: Evaluation, own: Evaluation) -> None:
    rows = whole.scored.rows
    train = rows["device"].isin(["nvidia-t4", "nvidia-v100-pcie-32gb"])
    assert (rows["trained"] == train).all()
    assert (rows["fitted"] == train).all()
    assert one(whole.groups, device="test", mode="isolated", op_class="all")["n_trained"] == 0
    group = one(whole.groups, device="nvidia-t4", mode="isolated", op_class="all")
    assert group["n_trained"] == group["n"] == 150
    assert group["baselines"]["gradient_boosting"]["n_fitted"] == 150
    assert group["baselines"]["roofline"]["n_fitted"] == 0
    assert any("tiny-v1 was trained on" in n for n in whole.notes)
    assert not own.scored.rows["trained"].any()
    assert "tiny-v1 was not trained on any of these rows" in own.notes
    held = own.scored.rows["target"] == "kernel"
    assert (own.scored.rows["fitted"] == held).all()  # split `all`: the trees saw every kernel


def test_the_mark_stands_where_rows_were_seen(whole: Evaluation) -> None:
    shown = text(whole).splitlines()
    (seen,) = [s for s in shown if s.split()[:3] == ["nvidia-t4", "train", "isolated"]]
    (unseen,) = [s for s in shown if s.split()[:3] == ["nvidia-l4", "test", "isolated"]]
    assert seen.count("*") == 2  # own error and boosted trees, not the roofline
    assert unseen.count("*") == 0


def test_every_row_is_featurised_once(
    release: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from predictor.fit import samples, step_samples

    rows = [0, 0]
    plain, inside = samples.node_features, step_samples.node_features

    def kernels(table: Any, *rest: Any) -> Any:
        rows[0] += len(table)
        return plain(table, *rest)

    def graphs(table: Any, *rest: Any) -> Any:
        rows[1] += 1
        return inside(table, *rest)

    monkeypatch.setattr(samples, "node_features", kernels)
    monkeypatch.setattr(step_samples, "node_features", graphs)
    evaluate("neusight", [data_dir], checkpoint=release)
    assert rows == [450, 12]  # kernel rows, measured steps


def test_devices_and_flags_that_a_reader_must_know_of(release: Path, tmp_path: Path) -> None:
    (tmp_path / "kernels.csv").write_text(
        OWN_KERNELS + "nvidia-a40,tanh,,,,,1048576,1,1,fp32,isolated,0.2\n"
        "intel-xeon-phi-7250,tanh,,,,,1048576,1,1,fp32,isolated,90\n"
    )
    notes = evaluate("rows", [tmp_path], checkpoint=release).notes
    assert "devices that tiny-v1 was not trained on: intel-xeon-phi-7250, nvidia-a40" in notes
    assert "tiny-v1 learned from GPUs; figures for intel-xeon-phi-7250 extrapolate" in notes
    assert any("rows with a flag are among these" in n and "1 below_floor" in n for n in notes)


def test_rows_tell_how_much_of_their_time_is_like_training(release: Path, data_dir: Path) -> None:
    """In a training range that holds all, all that was learned is; in an empty one nothing is."""
    predictor = load_predictor(load_release(release))
    wide = np.full_like(predictor.range_low_TF, np.inf)
    for low, high, share in ((-wide, wide, "learned"), (wide, -wide, None)):
        known = replace(predictor, range_low_TF=low, range_high_TF=high)
        outside = outside_of(low, high)
        kernels = kernel_samples(
            load_data(Recipe(name="a"), [data_dir]).kernels, known.networks.devices
        )
        found = [
            score_kernels(
                known.networks,
                kernels,
                frozenset(),
                outside,
            )
        ]
        assert (found[0]["in_distribution"] == 0).all()  # nothing was learned
        found = [
            score_kernels(
                known.networks,
                kernels,
                known.learned,
                outside,
            )
        ]
        data = load_data(Recipe(name="a"), [data_dir])
        steps = step_samples(data, data.steps, known.networks.devices)
        found += score_steps(
            known.networks,
            steps,
            known.learned,
            outside,
        )
        for rows in found:
            expected = rows[share] if share else 0.0
            np.testing.assert_allclose(rows["in_distribution"], expected)
        for rows in found[1:]:
            far = 0.0 if share else MOST_OUTSIDE * rows["learned"]
            np.testing.assert_allclose(rows["outside"], far, rtol=1e-6)


def test_training_rows_are_like_training_and_spread_is_no_baseline(whole: Evaluation) -> None:
    rows = whole.scored.rows
    assert (rows.loc[rows["trained"] & (rows["mode"] == "isolated"), "in_distribution"] == 1).all()
    assert (rows["in_distribution"] <= rows["learned"] + 1e-6).all()
    assert {"spread_us"} <= set(rows.columns)
    assert all("spread" not in g["baselines"] for g in whole.groups)


def test_rows_name_the_dimensions_of_kernels(whole: Evaluation, data_dir: Path) -> None:
    kernels = load_data(Recipe(name="a"), [data_dir]).kernels.set_index("row_id")
    rows = whole.scored.rows.set_index("row_id")
    rows = rows[rows["mode"] == "isolated"]
    assert len(rows) == 450
    for row_id, text in rows["dims"].items():
        told = dict(pair.split("=") for pair in text.split(" "))
        measured = kernels.loc[row_id].filter(like="dim_")
        known = measured[measured >= 0]
        assert {f"dim_{name}": int(n) for name, n in told.items()} == known.to_dict()
    linear = rows[rows["op"] == "linear"]["dims"]
    assert linear.str.match(r"batch=1 m=\d+ n=\d+ k=\d+$").all()
