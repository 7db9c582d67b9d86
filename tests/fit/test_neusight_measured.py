"""The shipped protocol checkpoint on the published measurements: the project's bars.

Needs the public traces: `PREDICTOR_TRACES` names the folder that holds `neusight/`. Sweeps of
isolated kernels are left out (they take a minute), so gradient boosting is not among the baselines.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from predictor.checkpoint import list_releases, load_release
from predictor.fit.evaluate import Evaluation, evaluate

RELEASE = "neusight-protocol-v2"
TRACES = Path(os.environ.get("PREDICTOR_TRACES", "")) / "neusight"

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("PREDICTOR_TRACES"), reason="PREDICTOR_TRACES is not set"
    ),
    pytest.mark.skipif(RELEASE not in list_releases(), reason=f"{RELEASE} is not shipped"),
]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    folder = tmp_path_factory.mktemp("traces") / "neusight"
    folder.mkdir()
    for part in ("label", "results"):
        (folder / part).symlink_to(TRACES / part, target_is_directory=True)
    return evaluate("neusight", [folder.parent], checkpoint=RELEASE)


def group(result: Evaluation, **wanted: str) -> dict[str, Any]:
    (found,) = [g for g in result.groups if all(g[k] == v for k, v in wanted.items())]
    return found


def test_the_step_rows_of_the_protocol(result: Evaluation) -> None:
    total = group(result, device="all", target="step", mode="all", phase="total")
    assert total["n"] == total["n_predicted"] == 58
    assert set(total["baselines"]) == {
        "neusight", "habitat", "micro", "roofline_published", "roofline", "sum_of_measured",
    }  # fmt: skip
    test = group(result, device="test", target="step", mode="all", phase="total")
    assert test["n"] == 20
    assert result.summary["devices"] == ["nvidia-a100-pcie-80gb", "nvidia-l4"]
    assert result.scored.excluded["step_compiled"] == 8
    assert result.scored.excluded["step_distributed"] == 3


@pytest.mark.parametrize(
    ("phase", "n", "neusight"),
    [("total", 20, 0.100), ("forward", 20, 0.185), ("backward", 13, 0.176)],
)
def test_steps_are_no_worse_than_neusight(
    result: Evaluation, phase: str, n: int, neusight: float
) -> None:
    found = group(result, device="test", target="step", mode="all", phase=phase)
    assert found["n"] == n
    assert found["baselines"]["neusight"]["mape"] == pytest.approx(neusight, abs=5e-4)
    assert found["mape"] <= found["baselines"]["neusight"]["mape"]
    low, high = result.summary[phase]["mape90"]
    assert low <= found["mape"] <= high


@pytest.mark.parametrize(
    ("op_class", "n", "neusight"),
    [
        ("batched_matmul", 36, 0.245),
        ("linear", 122, 0.279),
        ("elementwise", 172, 0.574),
        ("softmax", 18, 0.232),
        ("layernorm", 58, 1.027),
    ],
)
def test_forward_ops_inside_steps_are_better_than_neusight(
    result: Evaluation, op_class: str, n: int, neusight: float
) -> None:
    found = group(result, device="test", mode="in_step", phase="forward", op_class=op_class)
    peer = found["baselines"]["neusight"]
    assert peer["n"] == n
    assert peer["mape"] == pytest.approx(neusight, abs=5e-4)
    rows = result.scored.rows
    rows = rows[(rows["part"] == "test") & (rows["mode"] == "in_step")]
    rows = rows[(rows["phase"] == "forward") & (rows["op_class"] == op_class)]
    same = rows[rows["neusight_us"] > 0]
    error = (same["predicted_us"] / same["measured_us"] - 1).abs()
    assert len(same) == n
    assert error.mean() < peer["mape"]


def test_devices_held_out_in_training_are_on_average_within_the_bar() -> None:
    held_out = load_release(RELEASE).metrics["held_out"]
    steps = [
        g for g in held_out  # type: ignore[attr-defined]
        if (g["fold_kind"], g["target"], g["group"]) == ("device", "step", "total")
    ]  # fmt: skip
    assert {(g["fold"], g["n"]) for g in steps} == {
        ("nvidia-tesla-p4", 3), ("nvidia-p100-pcie-16gb", 5), ("nvidia-v100-pcie-32gb", 13),
        ("nvidia-t4", 5), ("nvidia-a100-pcie-40gb", 12),
    }  # fmt: skip
    assert sum(g["mape"] for g in steps) / len(steps) <= 0.12


def test_nothing_of_a_test_device_was_trained_on() -> None:
    config = load_release(RELEASE).config
    test = {"nvidia-a100-pcie-80gb", "nvidia-l4"}
    assert not test & set(config["model"]["devices"])  # type: ignore[index]
    assert not test & set(config["data"]["neusight"]["devices"])  # type: ignore[index]
