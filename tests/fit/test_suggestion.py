"""Plans for programs: what is offered, what is never offered, and what measuring promises."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch

from predictor import api, cli
from predictor.calibrate.readings import KINDS
from predictor.checkpoint import load_release
from predictor.errors import DataError
from predictor.fit.measurable import (
    Wanted,
    bank_programs,
    grid_points,
    of_graph,
    small_programs,
    smaller,
    wanted,
)
from predictor.fit.pool import Context, Pool, pool_of
from predictor.fit.suggestion import suggest, target_readings
from predictor.graph.ir import OpGraph
from predictor.hardware.catalogue import resolve_device
from predictor.nn.latency import load_predictor
from predictor.program import capture
from predictor.traces.measure.grid import Point
from predictor.traces.measure.plan import PlannedProgram

CHECKPOINT = "neusight-protocol-v2"
DEVICE = "nvidia-l4"


@pytest.fixture(scope="module")
def context() -> Context:
    base = load_predictor(load_release(CHECKPOINT))
    return Context(base=base, device=resolve_device(DEVICE), framework_version="2.0")


@pytest.fixture(scope="module")
def program() -> OpGraph:
    """Two products with a softmax between."""
    module = torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.Softmax(-1), torch.nn.Linear(2048, 512)
    )
    return capture(module, torch.empty(1024, 512))


@pytest.fixture(scope="module")
def target(program) -> Wanted:
    return of_graph("file.py:mine", program)


@pytest.fixture(scope="module")
def pool(context, target) -> Pool:
    other = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Tanh())
    step = of_graph("file.py:other", capture(other, torch.empty(4096, 1024)))
    alone = torch.nn.Sequential(torch.nn.BatchNorm1d(64))
    norm = of_graph("file.py:norm", capture(alone, torch.empty(64, 64)))
    programs = bank_programs(context.device, ["fp32"])
    banked = programs[programs["target"].isin(["bert-base", "resnet-18"])].head(2)
    return pool_of(
        context, banked=banked,
        captured=[
            (PlannedProgram(target=w.target, batch=w.batch), w.graph) for w in (step, norm)
        ],
        points=grid_points([target])[-4:],
    )  # fmt: skip


def test_what_is_stated_of_a_program_is_what_an_estimate_says(context, target, program):
    (log_us,) = target_readings([target], context).log_predicted_N
    said = api.estimate(program, device=DEVICE, checkpoint=CHECKPOINT).latency_us
    assert np.exp(log_us) == pytest.approx(said)


def test_a_pool_holds_steps_with_their_kernels_and_kernels_alone(pool):
    owner = pool.candidates.owner_N
    assert (np.diff(owner) >= 0).all() and set(owner) == set(range(len(pool.entries)))
    kind = pool.candidates.readings.kind_N
    for i, entry in enumerate(pool.entries):
        kinds = [KINDS[k] for k in kind[owner == i]]
        if isinstance(entry, Point):
            assert kinds == ["alone"]
        else:
            assert kinds[0] == "step" and set(kinds[1:]) == {"kernel"}
    seconds = pool.candidates.seconds_C
    assert (seconds > 0).all()
    steps = [s for s, e in zip(seconds, pool.entries, strict=True) if not isinstance(e, Point)]
    assert min(steps) > max(
        s for s, e in zip(seconds, pool.entries, strict=True) if isinstance(e, Point)
    )


def test_the_interval_that_is_expected_shrinks_with_every_measurement(context, target, pool):
    plan = suggest([target], context, most=3, pool=pool)
    assert 1 <= len(plan.measurements) <= 3 and plan.device == DEVICE
    assert plan.checkpoint == CHECKPOINT
    factors = [plan.targets[0].factor_before, *(m.factor for m in plan.measurements)]
    assert all(b < a for a, b in itertools.pairwise(factors))
    assert plan.targets[0].factor_after == pytest.approx(factors[-1])


def test_the_prediction_that_is_told_is_the_checkpoint_s(context, target, pool):
    plan = suggest([target], context, most=1, pool=pool)
    found = context.base.predict(target.graph, context.device, context.software)
    assert plan.targets[0].predicted_us == pytest.approx(found.step.latency_us, rel=1e-6)


def test_a_plan_keeps_to_the_time(context, target, pool):
    quickest = float(pool.candidates.seconds_C.min())
    plan = suggest([target], context, most=5, seconds=3 * quickest, pool=pool)
    assert plan.seconds <= 3 * quickest
    with pytest.raises(DataError, match="give more --minutes"):
        suggest([target], context, most=5, seconds=quickest / 2, pool=pool)


def test_what_does_not_fit_the_device_s_memory_is_not_offered():
    small, large = (
        set(bank_programs(resolve_device(name), ["bf16"])["target"])
        for name in ("nvidia-t4", "nvidia-h100-sxm-80gb")
    )
    assert "llama-3-8b" not in small and "llama-3-8b" in large
    assert "bert-base" in small


def test_smaller_sizes_of_a_program_are_not_the_program():
    asked = wanted("dlrm", mode="infer", batch=16)
    found = list(smaller([asked]))
    assert [p.batch for p, _ in found] == [2, 4, 8]
    assert all(g.workload.batch == p.batch for p, g in found)


def test_small_steps_are_for_processors_alone(monkeypatch):
    monkeypatch.setattr("predictor.fit.measurable.SMALL", ("dlrm",))
    assert not list(small_programs(resolve_device(DEVICE), ["fp32"], ["infer"]))
    core = resolve_device("intel-i9-10940x")
    programs = [p for p, _ in small_programs(core, ["fp32"], ["infer", "train"])]
    assert [(p.mode, p.optimizer) for p in programs] == [("infer", None), ("train", "adamw")]


def test_the_command_writes_a_plan(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("predictor.fit.measurable.TIMM_FAMILIES", 1)
    out = tmp_path / "plan.json"
    arguments = ["measure", "--suggest", "2", "--for", "dlrm", "--batch", "64", "--device", DEVICE]
    status = cli._run([*arguments, "--checkpoint", CHECKPOINT, "--out", str(out)], False)
    text = capsys.readouterr().out
    assert status == 0 and "dlrm infer fp32 batch=64" in text
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["device"] == DEVICE and 1 <= len(document["measure"]) <= 2
    offered = [(m.get("program"), m.get("batch")) for m in document["measure"]]
    assert ("dlrm", 64) not in offered


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--suggest", "2", "--out", "plan.json"], "belong together"),
        (["--for", "dlrm", "gpt2", "--out", "rows.parquet"], "belong together"),
        (["--out", "rows.parquet"], "give one of"),
        (["gpt2", "--plan", "plan.json", "--out", "rows.parquet"], "give one of"),
        (["--plan", "plan.json", "--train", "--out", "rows.parquet"], "--train is for a program"),
        (["--plan", "none.json", "--out", "rows.parquet"], "cannot be read"),
        (["--suggest", "2", "--for", "nothing", "--device", DEVICE, "--out", "p.json"], "nothing"),
    ],
)
def test_what_does_not_belong_together_is_refused(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert cli._run(["measure", *arguments], False) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
