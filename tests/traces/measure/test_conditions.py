"""Load of others, and the state of a device, from files of a system made up here."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from predictor.traces.measure import conditions
from predictor.traces.measure.conditions import Load, LoadWatch, Readings, readings


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two processors at 1 GHz and 3 GHz, a zone at 51 C and a power limit of 65 W."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("cpu MHz\t: 1000.0\ncpu MHz\t: 3000.0\n")
    (tmp_path / "thermal" / "thermal_zone0").mkdir(parents=True)
    (tmp_path / "thermal" / "thermal_zone0" / "temp").write_text("51000\n")
    (tmp_path / "powercap" / "intel-rapl:0").mkdir(parents=True)
    (tmp_path / "powercap" / "intel-rapl:0" / "constraint_0_power_limit_uw").write_text("65000000")
    monkeypatch.setattr(conditions, "PROC", tmp_path / "proc")
    monkeypatch.setattr(conditions, "SYS", tmp_path)
    monkeypatch.setattr(conditions, "_own_processors", lambda: {0, 1})
    return tmp_path


def ticks(system: Path, busy: int, steal: int) -> None:
    """Counters of a run: processor 2 is not ours."""
    line = f"{busy} 0 0 900 0 0 0 {steal} 0 0\n"
    (system / "proc" / "stat").write_text(
        f"cpu  1 1 1\ncpu0 {line}cpu1 {line}cpu2 9999 0 0 0 0 0 0 9\n"
    )


class Clock:
    """A second of wall time and half a second of our own processor time at each look."""

    def __init__(self) -> None:
        self.looks = -1

    def perf_counter(self) -> float:
        self.looks += 1
        return float(self.looks)

    def process_time(self) -> float:
        return 0.5 * self.looks


def test_load_of_others_is_what_the_processors_did_less_our_own(system, monkeypatch):
    monkeypatch.setattr(conditions, "time", Clock())
    monkeypatch.setattr(conditions, "_TICKS", 100)
    ticks(system, 100, 0)
    watch = LoadWatch()
    ticks(system, 150, 0)  # 2 x 0.5 s busy in a second, 0.5 s of it ours
    assert watch.look() == Load(seconds=1.0, other_share=0.25, stolen=0.0)
    ticks(system, 175, 3)  # 0.5 s busy, all of it ours
    assert watch.look() == Load(seconds=1.0, other_share=0.0, stolen=0.03)


@pytest.mark.parametrize(
    ("share", "stolen", "disturbed"), [(0.04, 0.01, False), (0.06, 0.0, True), (0.0, 0.03, True)]
)
def test_a_window_is_disturbed_by_others_or_by_the_hypervisor(share, stolen, disturbed):
    assert Load(seconds=1.0, other_share=share, stolen=stolen).disturbed is disturbed


def test_a_system_that_does_not_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(conditions, "PROC", tmp_path)
    monkeypatch.setattr(conditions, "SYS", tmp_path)
    watch = LoadWatch()
    assert not watch.readable and watch.look() is None
    found = readings("cpu")
    assert all(math.isnan(v) for v in (found.clock_mhz, found.temperature_c, found.power_limit_w))


def test_readings_of_a_processor(system):
    assert readings("cpu") == Readings(clock_mhz=2000.0, temperature_c=51.0, power_limit_w=65.0)


def test_readings_of_a_gpu_come_from_the_drivers_tool(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '1980, 43, 700.00'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert readings("cuda") == Readings(clock_mhz=1980.0, temperature_c=43.0, power_limit_w=700.0)
    monkeypatch.setenv("PATH", "")
    assert math.isnan(readings("cuda").clock_mhz)
