"""Whole steps: their rows, their parts, and the two files they go to."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from predictor.graph.ir import Kernel
from predictor.traces.measure.local import local_device
from predictor.traces.measure.program import RealProgram, prepared, real_inputs, real_program
from predictor.traces.measure.rows_file import RowsFile, read_rows
from predictor.traces.measure.steps import SEVERAL, StepRun, call_facts, keep, kernel_rows
from predictor.traces.measure.timer import Limits
from predictor.traces.merge import merged
from predictor.traces.sources.rows import parts
from predictor.zoo import build
from predictor.zoo.dlrm import Dlrm, DlrmConfig, clicks


@pytest.fixture(autouse=True)
def any_closure(monkeypatch):
    """Tests run beside other work, where profiled steps may be far from plain ones."""
    monkeypatch.setattr("predictor.traces.measure.steps.APART", math.inf)


@pytest.fixture(scope="module")
def run() -> StepRun:
    device = local_device("cpu", name="amd-epyc-9004-2vcpu", threads=1)
    return StepRun(device, Limits(seconds=0.05, refused=1e9))


def classifier(mode: str) -> RealProgram:
    module = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                           nn.Linear(64, 5))  # fmt: skip
    return prepared(
        RealProgram("mlp", module, {}, (torch.randn(8, 32),), mode=mode,
                    optimizer="adamw" if mode == "train" else None, facts={"batch": 8})
    )  # fmt: skip


def test_rows_and_parts_of_a_training_step(run, tmp_path):
    program = classifier("train")
    measured = run.measure(program)
    found = measured.parts
    assert found.matched == found.captured > 10 and not found.not_seen
    assert found.profiled_us > found.calls * found.call_cost_us > 0
    assert found.closure == pytest.approx(
        (found.kernels_us + found.unmatched_us + found.gap_us) / found.wall_us - 1
    )
    times = np.array([row["latency_us"] for row in measured.kernels])
    assert np.dot(times, measured.counts) == pytest.approx(found.kernels_us)
    linear = [r for r in measured.kernels if r["op"] == "linear"]
    assert [(r["dim_m"], r["dim_n"], r["dim_k"]) for r in linear] == [
        (8, 64, 32), (8, 64, 64), (8, 5, 64),
    ]  # fmt: skip
    assert {r["phase"] for r in measured.kernels} == {"forward", "backward", "optimizer"}
    steps = RowsFile(tmp_path / "rows.parquet", "steps")
    kernels = RowsFile(tmp_path / "rows.kernels.parquet", "kernels")
    keep(measured, program.key, steps, kernels)
    steps.write()
    kernels.write()
    data = merged(parts(tmp_path))
    assert not data.dropped
    step = data.steps.iloc[0]
    assert (step["model"], step["mode"], step["dtype"], step["batch"]) == (
        "mlp",
        "train",
        "fp32",
        8,
    )
    assert step["forward_us"] + step["backward_us"] < step["latency_us"]
    assert set(data.kernels["context"]) == {"step"} and len(data.kernels) == len(measured.kernels)
    _, kept = read_rows(tmp_path / "rows.parquet")
    assert kept["facts"]["parts"][program.key]["captured"] == found.captured


def test_inference_has_one_phase(run):
    step = run.measure(classifier("infer")).step
    assert step["forward_us"] == step["latency_us"] and math.isnan(step["backward_us"])


def test_equal_kernels_are_one_row():
    kernel = Kernel(op="add", phase="forward", dims={"numel": 4, "inputs": 2, "outputs": 1},
                    dtype="fp32", flops=4.0, read_bytes=32.0, write_bytes=16.0)  # fmt: skip
    call = type("Call", (), {"kernels": (kernel,)})
    rows, counts = kernel_rows(
        [call, call, call], [np.array([1.0, 2.0, 3.0]), np.array([4.0]), np.empty(0)]
    )
    assert counts == [2]
    assert rows[0]["latency_us"] == 3.0 and rows[0]["repeats"] == 4


def test_a_call_of_several_kernels_is_flagged_and_counts_all_their_work():
    one = {"phase": "backward", "dtype": "fp32"}
    dgrad = Kernel(op="conv_dgrad", dims={}, flops=8.0, read_bytes=3.0, write_bytes=1.0, **one)
    bias = Kernel(op="reduction", dims={}, flops=1.0, read_bytes=5.0, write_bytes=2.0, **one)
    row = call_facts((bias, dgrad))
    assert (row["op"], row["flag"]) == ("conv_dgrad", SEVERAL)
    assert (row["flops"], row["read_bytes"], row["write_bytes"]) == (9.0, 8.0, 3.0)
    assert call_facts((bias,))["flag"] == ""


class TestInputs:
    def test_indices_are_in_range(self):
        wanted = build("bert-base", mode="train", batch=2, seq=4).inputs
        module = nn.ModuleList([nn.Embedding(50, 4), nn.Embedding(2, 4)])
        made = real_inputs(wanted, module, "cpu")
        assert {n: tuple(t.shape) for n, t in made.items()} == {
            n: tuple(t.shape) for n, t in wanted.items()
        }
        assert made["input_ids"].max() < 50 and made["token_type_ids"].max() < 2

    def test_bags_are_one_value_a_sample(self):
        config = DlrmConfig(tables=(3, 7), bottom=(8, 16), top=(8, 1))
        module = Dlrm(config)
        wanted = {"dense": torch.empty(4, 13), "indices": torch.empty(8, dtype=torch.long),
                  "offsets": torch.empty(8, dtype=torch.long)}  # fmt: skip
        made = real_inputs(wanted, module, "cpu")
        assert made["offsets"].tolist() == [0, 1, 2, 3] * 2
        assert made["indices"][:4].max() < 3 and made["indices"][4:].max() < 7
        assert module(**made)["logits"].shape == (4,)
        assert set(clicks(4, 0, False)) == set(made)

    def test_a_file_of_ones_own(self, tmp_path):
        file = tmp_path / "own.py"
        file.write_text(
            "import torch\ndef program(batch: int = 2):\n"
            "    return torch.nn.Linear(4, 3), torch.randn(batch, 4)\n"
        )
        real = real_program(f"{file}:program", device="cpu", mode="train", batch=5, dtype="bf16")
        assert real.facts["batch"] == 5 and real.args[0].dtype is torch.bfloat16
        assert "train bf16 adamw batch=5" in real.key
        real.step()
        assert all(torch.isfinite(p).all() for p in real.module.parameters())


def test_a_step_that_its_parts_do_not_make_up_is_noisy(run, monkeypatch):
    monkeypatch.setattr("predictor.traces.measure.steps.flag_of", lambda *given, **named: "")
    sample = StepRun._sample
    for excess, flag in ((0.04, ""), (-0.06, "noisy"), (float("nan"), "")):
        monkeypatch.setattr(StepRun, "_sample", lambda *given, e=excess: (sample(*given)[0], e))
        measured = run.measure(classifier("infer"))
        assert measured.step["flag"] == flag
        assert {row["flag"] for row in measured.kernels} == {flag}


def test_parts_that_are_far_from_the_step_are_not_written(run, monkeypatch):
    monkeypatch.setattr("predictor.traces.measure.steps.APART", 0.25)
    monkeypatch.setattr("predictor.traces.measure.steps.flag_of", lambda *given, **named: "")
    sample = StepRun._sample
    for excess, written in ((0.2, True), (0.3, False), (-450.0, False)):
        monkeypatch.setattr(StepRun, "_sample", lambda *given, e=excess: (sample(*given)[0], e))
        measured = run.measure(classifier("infer"))
        assert bool(measured.kernels) is bool(measured.counts) is written
        assert measured.step["flag"] == "noisy"
