"""`predictor measure` from the command line: rows on disk, and what it refuses."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from predictor.cli import _run, app
from predictor.traces.measure.bandwidth import Bandwidth
from predictor.traces.measure.conditions import Load
from predictor.traces.measure.grid import Point, read_grid
from predictor.traces.measure.plan import Plan, Planned, PlannedFor, PlannedProgram
from predictor.traces.merge import merged
from predictor.traces.sources.rows import parts

PAGE = (Path(__file__).parents[1] / "docs" / "measure.md").read_text(encoding="utf-8")
PROGRAM = (
    "import torch\ndef program():\n    return torch.nn.Linear(512, 512), torch.randn(32, 512)\n"
)


@pytest.fixture
def at_hand(tmp_path, monkeypatch):
    """A device that is known, so that no bandwidth is measured; few samples are enough."""
    monkeypatch.setattr(
        "predictor.traces.measure.local.stream_bandwidth",
        lambda cache_bytes, threads: Bandwidth(gbps=20.0),
    )
    monkeypatch.setattr("predictor.traces.measure.timer.Timing.untrusted", lambda *given: "")
    monkeypatch.setattr("predictor.traces.measure.kernels.RETRIES", 0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str, capsys) -> tuple[int, str, str]:
    status = _run(list(arguments), False)
    out, err = capsys.readouterr()
    return status, out, err


def test_a_grid_becomes_rows_that_import(at_hand, monkeypatch, capsys):
    (at_hand / "grid.csv").write_text("kind,dtype,numel\nadd,fp32,4096\nrelu,bf16,4096\n")
    fast = ("--out", "mine/rows.parquet", "--threads", "1", "--seconds", "0.001")
    status, out, err = call("measure", "--kernels", "grid.csv", *fast, capsys=capsys)
    assert status == 0 and "2 rows of 2 points" in out and "measuring" in err
    data = merged(parts(at_hand / "mine"))
    assert sorted(data.kernels["op"]) == ["add", "relu"] and not data.dropped  # retries come last
    status, _, err = call("measure", "--kernels", "grid.csv", *fast, capsys=capsys)
    assert status == 2 and "--resume" in err
    status, out, _ = call("measure", "--kernels", "grid.csv", *fast, "--resume", capsys=capsys)
    assert status == 0 and "2 rows of 2 points" in out
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    other = [*fast[:2], "--threads", "2", "--resume"]
    status, _, err = call("measure", "--kernels", "grid.csv", *other, capsys=capsys)
    assert status == 2 and "with threads 1, this is 2: name another file" in err


def test_a_program_becomes_a_step_and_the_kernels_inside(at_hand, monkeypatch, capsys):
    (at_hand / "own.py").write_text(PROGRAM)
    monkeypatch.setattr("predictor.traces.measure.steps.APART", math.inf)
    status, out, _ = call(
        "measure", "own.py:program", "--train", "--optimizer", "sgd", "--out", "mine/step.parquet",
        "--as", "amd-epyc-9004-2vcpu", "--threads", "1", "--seconds", "0.05", capsys=capsys,
    )  # fmt: skip
    assert status == 0 and "captured calls found" in out
    data = merged(parts(at_hand / "mine"))
    assert data.steps["mode"].tolist() == ["train"]
    assert {"linear", "sgd"} <= set(data.kernels["op"])
    assert not (at_hand / "mine" / "step.device.toml").exists()  # the catalogue knows it


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("measure --out a.parquet", "a program"),
        ("measure gpt2 --kernels quick --out a.parquet", "a program"),
        ("measure --kernels quick --out a.csv", "written as .parquet"),
        ("measure --kernels quick --out a.parquet --batch 3", "--batch is for a program"),
        ("measure --kernels ful --out a.parquet", "no grid 'ful'"),
        ("measure --kernels quick --out a.parquet --threads 100000", "100000 threads: this mach"),
        ("measure --kernels quick --out a.parquet --device tpu", "cpu or cuda"),
        ("measure --kernels quick --out a.parquet --as nvidia-l4", "is a gpu"),
        ("measure --kernels quick --out a.parquet --threads 0", "--threads"),
        ("measure --kernels quick --out a.parquet --minutes nan", "--minutes"),
        ("measure --kernels quick --out a.parquet --seconds inf", "--seconds inf: must be"),
        ("measure gpt-9 --out a.parquet --as amd-epyc-9004-2vcpu", "no target 'gpt-9'"),
    ],
)
def test_bad_input_is_one_line(at_hand, arguments, message, capsys):
    status, out, err = call(*arguments.split(), capsys=capsys)
    assert status == 2 and out == ""
    assert message in err and "Traceback" not in err
    assert not list(at_hand.iterdir())


FAST = ("--threads", "1", "--seconds", "0.001")


@pytest.mark.parametrize(
    ("body", "said"),
    [("raise IndexError('own')", "IndexError: own"), ("raise SystemExit(0)", "SystemExit"),
     ("next(iter(()))", "StopIteration"), ("assert False, 'own'", "AssertionError: own")],
)  # fmt: skip
def test_a_program_that_fails_when_it_runs_is_one_line_and_leaves_nothing(
    at_hand, body, said, capsys
):
    (at_hand / "own.py").write_text(
        "import torch\nclass M(torch.nn.Linear):\n    def forward(self, x):\n"
        f"        if x.device.type != 'meta':\n            {body}\n"
        "        return super().forward(x)\n"
        "def program():\n    return M(4, 4), torch.randn(2, 4)\n"
    )
    status, out, err = call("measure", "own.py:program", "--out", "a.parquet", *FAST, capsys=capsys)
    assert status == 2 and out == "" and "Traceback" not in err
    assert f"fails when it runs in own.py:5 in forward: `{body}`: {said}" in err
    assert [p.name for p in at_hand.iterdir() if p.suffix != ""] == ["own.py"]


def test_a_run_without_a_row_is_an_error(at_hand, capsys):
    (at_hand / "grid.csv").write_text("kind,numel,cache\nadd,8,cold\n")
    status, out, err = call("measure", "--kernels", "grid.csv", "--out", "a.parquet", *FAST,
                            capsys=capsys)  # fmt: skip
    assert status == 2 and out == ""
    assert "no row of 1 point: refused: 1 too_small_for_a_cold_cache" in err
    assert [p.name for p in at_hand.iterdir()] == ["grid.csv"]


def test_a_program_that_does_not_fit_into_the_minutes_is_told(at_hand, monkeypatch, capsys):
    (at_hand / "own.py").write_text(PROGRAM)
    monkeypatch.setattr("predictor.traces.measure.session.deadline_after", lambda minutes: 0.0)
    status, _, err = call("measure", "own.py:program", "--out", "a.parquet", "--minutes", "1",
                          *FAST, capsys=capsys)  # fmt: skip
    assert status == 2 and "own.py:program: needs another" in err and "more --minutes" in err
    assert not (at_hand / "a.parquet").exists()


def test_a_refused_step_leaves_no_file_and_is_measured_the_next_time(at_hand, monkeypatch, capsys):
    (at_hand / "own.py").write_text(PROGRAM)
    asked = ("measure", "own.py:program", "--out", "mine/a.parquet", *FAST, "--resume")
    with monkeypatch.context() as patch:
        patch.setattr(
            "predictor.traces.measure.timer.Timing.untrusted", lambda *given: "spread_too_large"
        )
        status, _, err = call(*asked, capsys=capsys)
    assert status == 2 and "the time is not written: its spread is" in err and "quiet" in err
    assert not (at_hand / "mine").exists()
    status, out, _ = call(*asked, capsys=capsys)
    assert status == 0 and "wrote mine/a.parquet" in out


def test_a_busy_machine_is_told_at_the_start_and_at_the_end(at_hand, monkeypatch, capsys):
    busy = Load(seconds=1.0, other_share=0.35, stolen=0.0)
    monkeypatch.setattr("predictor.traces.measure.conditions.LoadWatch.look", lambda self: busy)
    monkeypatch.setattr("predictor.traces.measure.kernels.RETRIES", 0)
    (at_hand / "grid.csv").write_text("kind,numel\nadd,4096\n")
    status, out, err = call("measure", "--kernels", "grid.csv", "--out", "a.parquet", *FAST,
                            capsys=capsys)  # fmt: skip
    assert status == 0 and "others keep 35% of the cores busy" in err
    assert "1 row of 1 point: 0 sound, 1 other_load" in out and "1 thread," in err
    assert "most rows are other_load: end what else computes here" in out and "--resume" in out


def test_the_page_tells_every_option_and_flag():
    shown = CliRunner().invoke(app, ["measure", "--help"], env={"COLUMNS": "200"}).output
    options = set(re.findall(r"--[a-z0-9]+", shown)) - {"--help", "--compile"}
    assert options <= set(re.findall(r"--[a-z0-9]+", PAGE))
    for flag in ("other_load", "noisy", "cold_cache", "several_kernels"):
        assert f"| `{flag}` |" in PAGE


def test_the_grids_of_the_page_are_read_and_its_words_are_told(tmp_path):
    for suffix, points in (("toml", 66), ("csv", 2)):
        [text] = re.findall(rf"```{suffix}\n(.*?)```", PAGE, flags=re.DOTALL)
        (tmp_path / f"grid.{suffix}").write_text(text)
        assert len(read_grid(str(tmp_path / f"grid.{suffix}"))) == points
    for word in ("*point*", "*pass*", "*samples*", "(0.15)", "--device cuda|cpu"):
        assert word in PAGE


def test_a_processor_keeps_its_description_in_a_folder(at_hand, capsys, monkeypatch):
    # a machine whose processor the catalogue lacks, and whose bandwidth never reads the same twice
    rates = iter((Bandwidth(gbps=20.0), Bandwidth(gbps=21.0)))
    monkeypatch.setattr("predictor.hardware.catalogue._adopted", {})
    monkeypatch.setattr(
        "predictor.traces.measure.local.stream_bandwidth",
        lambda cache_bytes, threads: next(rates),
    )
    (at_hand / "grid.csv").write_text("kind,dtype,numel\nadd,fp32,4096\n")
    for name in ("rows", "more"):
        status, *_ = call(
            "measure", "--kernels", "grid.csv", "--out", f"mine/{name}.parquet", "--threads", "1",
            "--seconds", "0.001", capsys=capsys,
        )  # fmt: skip
        assert status == 0
    files = [at_hand / "mine" / f"{name}.device.toml" for name in ("rows", "more")]
    assert files[0].read_text() == files[1].read_text()
    assert next(rates).gbps == 21.0  # measured once
    assert len(merged(parts(at_hand / "mine")).kernels) == 2


def test_a_plan_is_measured_steps_first_and_its_rows_import(at_hand, capsys):
    (at_hand / "mine.py").write_text(PROGRAM)
    fast = ("--threads", "1", "--seconds", "0.001")
    (at_hand / "grid.csv").write_text("kind,dtype,numel\nadd,fp32,4096\n")
    call("measure", "--kernels", "grid.csv", "--out", "mine/first.parquet", *fast, capsys=capsys)
    device = str(merged(parts(at_hand / "mine")).kernels["device"][0])
    plan = Plan(
        device=device, checkpoint="base-v2",
        targets=(PlannedFor(target="t", predicted_us=1.0, factor_before=2.0, factor_after=1.5),),
        measurements=(
            Planned(what=Point(kind="add", dtype="fp32", sizes={"numel": 4096}), seconds=1.0,
                    factor=1.8),
            Planned(what=PlannedProgram(target="mine.py:program"), seconds=1.0, factor=1.5),
            Planned(what=PlannedProgram(target="mine.py:missing"), seconds=1.0, factor=1.5),
        ),
    )  # fmt: skip
    plan.write(at_hand / "plan.json")
    out = ("--out", "planned/rows.parquet")
    status, text, err = call("measure", "--plan", "plan.json", *out, *fast, capsys=capsys)
    assert status == 0, err
    assert "1 row of 2 points" in text and "1 of 1 kernel alone" in text
    data = merged(parts(at_hand / "planned"))
    assert list(data.steps["model"]) == ["mine.py:program"]
    assert (data.kernels["context"] == "isolated").sum() == 1  # inside a step: on a quiet machine
    plan = replace(plan, device="nvidia-t4")
    plan.write(at_hand / "other.json")
    status, _, err = call("measure", "--plan", "other.json", "--out", "o/rows.parquet", *fast,
                          capsys=capsys)  # fmt: skip
    assert status == 2 and "the plan is for nvidia-t4" in err
    assert not (at_hand / "o" / "rows.parquet").exists()
