"""`predictor measure` from the command line: rows on disk, and what it refuses."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from predictor.cli import _run, app
from predictor.hardware.probe import device_of
from predictor.traces.merge import merged
from predictor.traces.sources.rows import parts

PAGE = (Path(__file__).parents[1] / "docs" / "measure.md").read_text(encoding="utf-8")
PROGRAM = "import torch\ndef program():\n    return torch.nn.Linear(64, 64), torch.randn(32, 64)\n"


@pytest.fixture
def at_hand(tmp_path, monkeypatch):
    """A device that is known, so that no bandwidth is measured; few samples are enough."""
    monkeypatch.setattr("predictor.traces.measure.local.stream_gbps", lambda cache_bytes: 20.0)
    monkeypatch.setattr("predictor.traces.measure.timer.Timing.untrusted", lambda *given: "")
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
        ("measure gpt-9 --out a.parquet --as amd-epyc-9004-2vcpu", "no target 'gpt-9'"),
    ],
)
def test_bad_input_is_one_line(at_hand, arguments, message, capsys):
    status, out, err = call(*arguments.split(), capsys=capsys)
    assert status == 2 and out == ""
    assert message in err and "Traceback" not in err
    assert not list(at_hand.glob("*.parquet"))


def test_the_page_tells_every_option_and_flag():
    shown = CliRunner().invoke(app, ["measure", "--help"], env={"COLUMNS": "200"}).output
    options = set(re.findall(r"--[a-z0-9]+", shown)) - {"--help", "--compile", "--suggest"}
    assert options <= set(re.findall(r"--[a-z0-9]+", PAGE))
    for flag in ("other_load", "noisy", "cold_cache", "several_kernels"):
        assert f"| `{flag}` |" in PAGE


def test_a_processor_keeps_its_description_in_a_folder(at_hand, capsys, monkeypatch):
    # a machine whose processor the catalogue lacks, and whose bandwidth never reads the same twice
    rates = iter((20.0, 21.0))
    monkeypatch.setattr("predictor.hardware.catalogue._adopted", {})
    monkeypatch.setattr(
        "predictor.traces.measure.local._processor_device",
        lambda found: device_of(found, stream_gbps=next(rates)),
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
    assert next(rates) == 21.0  # measured once
    assert len(merged(parts(at_hand / "mine")).kernels) == 2
