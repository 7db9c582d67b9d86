"""Plan files: what is written is read again, and what cannot be measured is refused."""

from __future__ import annotations

import json

import pytest

from predictor.errors import DataError
from predictor.traces.measure.grid import Point
from predictor.traces.measure.plan import Plan, Planned, PlannedFor, PlannedProgram, read_plan

PLAN = Plan(
    device="nvidia-t4", checkpoint="base-v2",
    targets=(
        PlannedFor(target="gpt2 train fp32", predicted_us=2e5, factor_before=2.0, factor_after=1.2),
    ),
    measurements=(
        Planned(
            what=PlannedProgram(
                target="bert-base", mode="train", dtype="bf16", batch=2, seq=64, optimizer="adamw"
            ),
            seconds=6.5, factor=1.4,
        ),
        Planned(
            what=Point(kind="softmax", dtype="fp32", sizes={"rows": 8, "cols": 64}),
            seconds=0.7, factor=1.2,
        ),
    ),
)  # fmt: skip


def written(tmp_path, change=lambda document: None):
    path = tmp_path / "plan.json"
    PLAN.write(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_a_plan_is_read_as_it_was_written(tmp_path):
    found = read_plan(written(tmp_path))
    assert found == PLAN
    assert found.seconds == pytest.approx(7.2)
    assert [p.key for p in found.programs] == ["bert-base train bf16 adamw batch=2 seq=64"]
    assert [p.key for p in found.points] == ["softmax fp32 warm cols=64 rows=8"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(version=9), "no plan of version 1"),
        (lambda d: d.update(measure=[]), "nothing to measure"),
        (lambda d: d.update(measure=4), "measure = 4"),
        (lambda d: d.pop("device"), "device = None"),
        (lambda d: d["measure"][0].update(mode="both"), "mode 'both'; one of: infer, train"),
        (lambda d: d["measure"][0].update(batch=0), "batch = 0"),
        (lambda d: d["measure"][0].update(seconds="long"), "seconds = 'long'"),
        (lambda d: d["measure"][1].update(kind="softmux"), "no kind of kernel 'softmux'"),
        (lambda d: d["measure"][1].update(sizes={"rows": 8}), "needs size 'cols'"),
        (lambda d: d["measure"][1].update(sizes={"rows": 1.5, "cols": 2}), "whole numbers"),
        (lambda d: d["measure"][1].update(cache="hot"), "warm or cold"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_measured_is_refused(tmp_path, change, said):
    with pytest.raises(DataError, match=said):
        read_plan(written(tmp_path, change))


def test_a_file_that_is_no_plan_is_refused(tmp_path):
    path = tmp_path / "plan.json"
    with pytest.raises(DataError, match="cannot be read"):
        read_plan(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="cannot be read"):
        read_plan(path)
