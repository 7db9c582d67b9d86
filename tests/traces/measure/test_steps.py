"""Whole steps: their rows, their parts, and the two files they go to."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from predictor.commands.measure_text import step_text
from predictor.errors import CaptureError, DataError
from predictor.graph.ir import Kernel
from predictor.traces.measure.conditions import Load
from predictor.traces.measure.local import local_device
from predictor.traces.measure.program import RealProgram, prepared, real_program
from predictor.traces.measure.real_values import real_inputs
from predictor.traces.measure.rows_file import RowsFile, read_rows
from predictor.traces.measure.steps import SEVERAL, StepRun, call_facts, kernel_rows
from predictor.traces.measure.tasks import Task, keep, run_tasks
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
        monkeypatch.setattr(StepRun, "_sample", lambda *given, e=excess: (*sample(*given)[:2], e))
        measured = run.measure(classifier("infer"))
        assert measured.step["flag"] == flag
        assert {row["flag"] for row in measured.kernels} == {flag}


def test_parts_that_are_far_from_the_step_are_not_written(run, monkeypatch):
    monkeypatch.setattr("predictor.traces.measure.steps.APART", 0.25)
    monkeypatch.setattr("predictor.traces.measure.steps.flag_of", lambda *given, **named: "")
    sample = StepRun._sample
    for excess, written in ((0.2, True), (0.3, False), (-450.0, False)):
        monkeypatch.setattr(StepRun, "_sample", lambda *given, e=excess: (*sample(*given)[:2], e))
        measured = run.measure(classifier("infer"))
        assert bool(measured.kernels) is bool(measured.counts) is written
        assert measured.step["flag"] == "noisy"


class Flaky(nn.Module):
    """Raises at one of its forwards: capture makes the first."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.layer, self.error, self.real = nn.Linear(4, 3), error, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type != "meta":
            self.real += 1
            if self.real > 1:
                raise self.error
        return self.layer(x)


ERRORS = [IndexError("list"), StopIteration(), AssertionError("no"), SystemExit(0), KeyError("a"),
          RuntimeError("shape")]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_what_a_program_raises_when_it_runs_is_one_typed_error(run, error, mode):
    program = RealProgram("own.py:f", Flaky(error), {}, (torch.randn(2, 4),), mode=mode,
                          facts={"batch": 2})  # fmt: skip
    with pytest.raises(CaptureError, match=rf"own.py:f fails when it runs.*{type(error).__name__}"):
        run.measure(program)


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_a_program_that_fails_does_not_stop_the_others(run, tmp_path, monkeypatch, error):
    monkeypatch.setattr("predictor.traces.measure.steps.flag_of", lambda *given, **named: "")
    monkeypatch.setattr("predictor.traces.measure.steps.CLOSED", math.inf)

    def broken() -> RealProgram:
        raise error

    fails = prepared(RealProgram("flaky", Flaky(error), {}, (torch.randn(2, 4),)))
    tasks = [
        Task(key="a", build=broken), Task(key="b", build=lambda: fails),
        Task(key="c", build=lambda: classifier("infer")),
    ]  # fmt: skip
    steps, kernels = (RowsFile(tmp_path / f"{t}.parquet", t) for t in ("steps", "kernels"))
    assert run_tasks(run, tasks, steps, kernels)
    assert steps.refused_points == {k: type(error).__name__ for k in "ab"}
    assert steps.done("c") and not steps.done("a")
    tried = []
    again = [Task(key=k, build=lambda k=k: tried.append(k) or broken()) for k in "abc"]
    run_tasks(run, again, RowsFile(steps.path, "steps", resume=True), kernels)
    assert tried == ["a", "b"]  # refused steps are tried once in each run


class Restless(nn.Module):
    """Makes one call more at each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.times = nn.Linear(4, 4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.times += 1
        for _ in range(self.times):
            x = self.layer(x)
        return x


def test_a_program_whose_steps_differ_has_no_kernels_and_is_noisy(run, monkeypatch):
    monkeypatch.setattr("predictor.traces.measure.steps.flag_of", lambda *given, **named: "")
    measured = run.measure(RealProgram("restless", Restless(), {}, (torch.randn(2, 4),),
                                       facts={"batch": 2}))  # fmt: skip
    assert measured.parts.differs and measured.parts.alike == 0 < measured.parts.tried
    assert measured.step["flag"] == "noisy" and not measured.kernels
    assert "steps differ" in step_text("restless", measured)


def test_a_program_whose_steps_are_alike_is_told_apart(run):
    parts = run.measure(classifier("infer")).parts
    assert not parts.differs and parts.alike >= 5


class Sized(nn.Linear):
    """A module with a length, as a sequence has it."""

    def __len__(self) -> int:
        raise TypeError("no length")


def test_a_module_is_not_asked_for_its_length():
    RealProgram("sized", Sized(4, 3), {}, (torch.randn(2, 4),)).step()


def test_a_module_that_comes_compiled_is_recorded_as_compiled():
    plain = nn.Sequential(nn.Linear(4, 3))
    assert (
        not RealProgram("p", plain, {}).compiled
        and RealProgram("p", plain, {}).key == "p infer fp32"
    )
    wrapped = RealProgram("p", torch.compile(plain, backend="eager"), {})
    inner = RealProgram("p", nn.Sequential(torch.compile(plain, backend="eager")), {})
    in_place = nn.Sequential(nn.Linear(4, 3))
    in_place[0].compile(backend="eager")
    for program in (wrapped, inner, RealProgram("p", in_place, {})):
        assert program.compiled and program.key == "p infer fp32 compiled"


def test_a_module_without_parameters_runs_under_autocast():
    RealProgram("relu", nn.ReLU(), {}, (torch.randn(2, 4),), dtype="amp-bf16").step()


def test_a_file_has_its_name_and_its_sequence_length(tmp_path):
    (tmp_path / "deep").mkdir()
    file = tmp_path / "deep" / "own.py"
    file.write_text(
        "import torch\ndef program(batch=2, seq=3):\n"
        "    return torch.nn.Linear(4, 3), torch.randn(batch, seq, 4)\n"
    )
    real = real_program(f"{file}:program", device="cpu", batch=5, seq=7)
    assert real.name == "own.py:program" and real.facts == {"batch": 5, "seq": 7}
    assert real.key == "own.py:program infer fp32 batch=5 seq=7"


def test_a_file_is_measured_in_the_dtype_of_its_weights(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "import torch\ndef program(batch=2):\n"
        "    own = torch.nn.Sequential(torch.nn.Linear(4, 3).bfloat16(), torch.nn.LayerNorm(3))\n"
        "    return own, torch.randn(batch, 4).bfloat16()\n"
    )
    real = real_program(f"{file}:program", device="cpu")
    assert real.key == "own.py:program infer bf16 batch=2"
    assert real.module[1].weight.dtype is torch.float32  # as the program has it
    cast = real_program(f"{file}:program", device="cpu", dtype="bf16")
    assert cast.module[1].weight.dtype is torch.bfloat16


@pytest.mark.parametrize("dtype", ["fp8", "int3", "float16"])
def test_a_dtype_that_is_not_run_is_refused_and_not_written_as_one_that_was(dtype):
    with pytest.raises(CaptureError, match=rf"dtype '{dtype}' cannot be measured; one of: fp32"):
        real_program("resnet-18", device="cpu", dtype=dtype)


def test_an_optimizer_without_training_is_refused():
    with pytest.raises(CaptureError, match="optimizer 'sgd' needs a training step"):
        real_program("resnet-18", device="cpu", optimizer="sgd")


def test_a_step_that_does_not_fit_into_the_time_is_refused_before_it_is_sampled(run):
    program = classifier("infer")
    with pytest.raises(DataError, match=r"mlp: needs another .* give more --minutes"):
        run.measure(program, stop=0.0)


def test_a_step_that_becomes_slow_is_refused_while_it_is_sampled(run, monkeypatch):
    program, clock = classifier("infer"), iter(range(0, 10**6, 40))  # 40 s from look to look
    monkeypatch.setattr("predictor.traces.measure.steps.time.monotonic", lambda: next(clock))
    with pytest.raises(DataError, match=r"mlp: needs another .*4 times 40 s"):
        run.measure(program, stop=200.0)


def test_sampling_stops_with_the_time(run, monkeypatch):
    monkeypatch.setattr("predictor.traces.measure.steps._check_time", lambda *given: None)
    slow = StepRun(run.device, Limits(seconds=60.0, target=0.0, refused=1e9))
    measured = slow.measure(classifier("infer"), stop=0.0)
    assert measured.parts.tried == 5 and measured.step["repeats"] == 7


def test_a_refusal_tells_spread_load_and_remedy(run):
    measured = run.measure(classifier("infer"))
    step = {**measured.step, "latency_us": 100.0, "spread_us": 62.0}
    refused = replace(measured, step=step, refused="spread_too_large",
                      load=Load(seconds=1.0, other_share=0.4, stolen=0.0))  # fmt: skip
    said = refused.refusal(Limits())
    assert "spread is 62% of it, 50% at most" in said and "others kept 40% of the cores" in said
    assert "quiet machine" in said and "--seconds" in said


def test_the_text_of_a_step_adds_up(run):
    measured = run.measure(classifier("train"))
    parts = replace(measured.parts, wall_us=200.0, kernels_us=150.0, unmatched_us=20.0,
                    gap_us=-2.0, closure=-0.16, optimizer_us=50.0)  # fmt: skip
    step = {**measured.step, "latency_us": 200.0, "spread_us": 4.0, "flag": "", "repeats": 1}
    lines = step_text("mlp", replace(measured, parts=parts, step=step)).splitlines()
    assert lines[0] == "mlp: 200.0 µs a step, spread 2.0% (1 step)"
    assert "optimizer 50.00 µs" in lines[1]
    assert "kernels 75.0%, other calls 10.0%, gap -1.0%: together 84.0% of the step" in lines[2]
