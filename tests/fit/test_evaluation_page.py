"""`docs/evaluation.md` names what an evaluation writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from predictor.fit.evaluate import Evaluation, evaluate
from predictor.fit.groups import FITTED
from predictor.fit.rows import baselines_of
from predictor.fit.step_rows import NO_PART, NO_PEER

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")
WORDS = set(re.findall(r"`([^`\n]+)`", PAGE))


@pytest.fixture(scope="module")
def whole(run_dir: Path, data_dir: Path) -> Evaluation:
    return evaluate("neusight", [data_dir], checkpoint=run_dir / "release")


def test_every_key_of_the_report_and_of_its_groups_is_named(whole: Evaluation) -> None:
    report = whole.to_json()
    assert set(report) <= WORDS
    assert set(report["groups"][0]) <= WORDS
    baseline = next(g["baselines"] for g in report["groups"])["roofline"]
    assert {"n", "n_fitted", "own_mape"} <= set(baseline) & WORDS


def test_columns_that_judge_a_row_are_named(whole: Evaluation) -> None:
    judged = {
        "learned", "in_distribution", "spread_us", "label", "part", "seen", "trained", "fitted",
        "scored", "reason",
    }  # fmt: skip
    assert judged <= set(whole.scored.rows.columns) & WORDS
    assert {*whole.scored.rows["label"]} <= WORDS


def test_reasons_are_named() -> None:
    named = {NO_PART.removeprefix("step_"), NO_PEER.removeprefix("step_")}
    assert named | {"without_graph", "graph_not_found", "no_rate"} <= WORDS


def test_fitted_baselines_are_those_of_the_rows(whole: Evaluation) -> None:
    assert "gradient_boosting" in FITTED
    assert set(baselines_of(whole.scored.rows)) - set(FITTED) == {
        "roofline", "neusight", "habitat", "micro", "roofline_published", "sum_of_measured",
    }  # fmt: skip
