"""The script that measures the project's own data set: a few points of it, twice."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from predictor.hardware.catalogue import resolve_device
from predictor.traces.measure.bandwidth import Bandwidth
from predictor.traces.merge import merged
from predictor.traces.sources.own import parts

TRAINING = Path(__file__).parents[3] / "training"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TRAINING / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def measure_own() -> Iterator[ModuleType]:
    before = set(sys.modules)
    sys.path.insert(0, str(TRAINING))
    try:
        yield script("measure_own")
    finally:
        sys.path.remove(str(TRAINING))
        for name in {"measure_own", "own_programs", "own_models"} - before:
            sys.modules.pop(name, None)


@pytest.fixture
def quick(measure_own: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, satisfied with few samples on a busy machine."""
    limits = measure_own.Limits(seconds=0.002, warmup_seconds=0.0, noisy=1e9, refused=1e9)
    monkeypatch.setattr(measure_own, "KERNEL_LIMITS", limits)
    monkeypatch.setattr(measure_own, "STEP_LIMITS", limits)
    monkeypatch.setattr("predictor.traces.measure.kernels.RETRIES", 0)
    monkeypatch.setattr("predictor.traces.measure.conditions.OTHER_SHARE", 1e9)
    monkeypatch.setattr("predictor.traces.measure.conditions.STOLEN", 1e9)
    monkeypatch.setattr("predictor.traces.measure.steps.CLOSED", math.inf)  # noisy: measured again
    monkeypatch.setattr(
        "predictor.traces.measure.local.stream_bandwidth",
        lambda cache_bytes, threads: Bandwidth(gbps=20.0),
    )
    return measure_own


def test_a_small_data_set_is_made_read_and_gone_on_with(quick, tmp_path, monkeypatch, capsys):
    small = ["--out", str(tmp_path), "--grid", "quick", "--points", "6", "--threads", "1"]
    assert quick.main([*small, "--only", "mlp-4x512"]) == 0
    data = merged(parts(tmp_path))
    assert not data.dropped
    assert len(data.kernels[data.kernels["context"] == "isolated"]) == 6
    assert data.steps["model"].tolist() == ["mlp-4x512"] * 4
    assert (data.steps["graph"] != "").all()
    inside = data.kernels[data.kernels["context"] == "step"]
    assert set(inside["phase"]) == {"forward", "backward", "optimizer"}
    [folder] = tmp_path.iterdir()
    card, manifest = (folder / "README.md").read_text(), json.loads(
        (folder / "manifest.json").read_text()
    )  # fmt: skip
    assert "| `steps.parquet` | 4 |" in card
    assert manifest["files"]["kernels.parquet"][0] == 6
    assert "| op class | dtype | inside steps |" in card and ", 1 thread; last on 2" in card
    device_file = folder / f"{folder.name}.device.toml"
    assert manifest["files"][device_file.name] == [
        1, hashlib.sha256(device_file.read_bytes()).hexdigest(),
    ]  # fmt: skip
    before = pd.read_parquet(folder / "steps.parquet")
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with pytest.raises(SystemExit, match="2"):
        quick.main([*small[:-1], "2"])
    assert "measured with threads 1, this is 2" in capsys.readouterr().err
    assert quick.main([*small, "--only", "mlp"]) == 0
    after = pd.read_parquet(folder / "steps.parquet")
    assert len(after) == 8
    pd.testing.assert_frame_equal(before, after[after["model"] == "mlp-4x512"])


def test_the_card_tells_what_was_refused_and_why(quick, tmp_path):
    rows = quick.open_rows(
        tmp_path / "kernels.parquet", "kernels", quick.place_at(
            lambda _: tmp_path / "a.device.toml", "cpu", name="amd-epyc-9004-2vcpu", threads=1
        ), resume=True,
    )  # fmt: skip
    rows.add("add fp32 warm numel=8", [{"device": "amd-epyc-9004-2vcpu", "op": "add"}])
    rows.refuse("conv fp32 warm size=8", "RuntimeError")
    rows.write()
    card = quick.card(tmp_path, resolve_device("amd-epyc-9004-2vcpu"), 7)
    assert "| `kernels.parquet` | conv | RuntimeError | 1 |" in card
    assert ", 1 thread; last on" in card  # as the file tells it
    assert "another number of threads" in card and "steps.parquet" not in card


@pytest.mark.parametrize("name", ["measure_own", "measure_device"])
@pytest.mark.parametrize(
    ("flag", "value"), [("--minutes", "nan"), ("--minutes", "0"), ("--minutes=-3", None),
                        ("--threads", "0"), ("--threads=-1", None)],
)  # fmt: skip
def test_impossible_times_and_threads_are_refused(quick, tmp_path, capsys, name, flag, value):
    module = quick if name == "measure_own" else script(name)
    given = [flag] if value is None else [flag, value]
    cpu = ["--device", "cpu"] if name == "measure_device" else []
    with pytest.raises(SystemExit, match="2"):
        module.main(["--out", str(tmp_path), *cpu, *given])
    assert "error:" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_programs_are_many_and_of_many_families(measure_own):
    specs = sys.modules["own_programs"].specs()
    found = list(measure_own.steps())
    assert len(found) >= 100 and len({s.family for s in specs}) >= 20
    assert {mode for _, mode, _ in found} == {"infer", "train"}
    first = [s.family for s, _, _ in found[:25]]
    assert len(set(first)) == 25  # families take turns


def test_the_script_for_gpus_on_a_processor(quick, tmp_path, monkeypatch):
    device = script("measure_device")
    monkeypatch.setattr(device, "KERNEL_LIMITS", quick.KERNEL_LIMITS)
    monkeypatch.setattr(device, "STEP_LIMITS", quick.STEP_LIMITS)
    small = ["--device", "cpu", "--out", str(tmp_path), "--only", "mlp-4x512", "--points", "5",
             "--minutes", "5", "--threads", "1", "--skip", "compiled"]  # fmt: skip
    assert device.main(small) == 0
    [folder] = tmp_path.iterdir()
    found = json.loads((folder / "summary.json").read_text())
    assert found["finished"] == {"kernels": True, "steps": True, "traces": True}
    assert found["files"]["kernels.parquet"]["rows"] == 5
    assert found["files"]["steps.parquet"]["rows"] == 4
    for reading in ("clock_mhz", "temperature_c", "power_limit_w"):
        assert found[reading] is None or isinstance(found[reading], float)
    [trace] = found["traces"]
    assert (folder / "traces" / trace).read_bytes()[:2] == b"\x1f\x8b"
    data = merged(parts(tmp_path))
    assert not data.dropped and (data.steps["graph"] != "").all()
    written = {p: p.stat().st_mtime_ns for p in folder.glob("traces/*")}
    assert device.main(small) == 0  # nothing is left to do
    assert {p: p.stat().st_mtime_ns for p in folder.glob("traces/*")} == written
    assert json.loads((folder / "summary.json").read_text())["files"] == found["files"]


def test_parts_keep_to_their_shares_and_the_rest_goes_round(quick, monkeypatch):
    device = script("measure_device")
    now = [0.0]
    monkeypatch.setattr(device.time, "monotonic", lambda: now[0])
    calls = []

    def part(name, needs):
        def run(deadline):
            calls.append((name, round(deadline, 6)))
            took = min(needs[0], deadline - now[0])
            now[0] += took
            needs[0] -= took
            return needs[0] <= 1e-9

        return run

    parts_ = [
        device.Part(name=n, share=s, run=part(n, [need]))
        for n, s, need in (("a", 0.5, 70.0), ("b", 0.3, 10.0), ("c", 0.2, 15.0))
    ]
    assert device.work(parts_, 100.0) == {"a": True, "b": True, "c": True}
    assert calls[0] == ("a", 50.0) and calls[-1] == ("a", 100.0)
    assert now[0] == 95.0


def test_the_steps_for_a_gpu_are_of_twenty_bundled_models(measure_own):
    found = sys.modules["own_programs"].on_a_gpu()
    assert len({s.name for s, _, _ in found}) == 20
    assert {mode for _, mode, _ in found} == {"infer", "train"}
