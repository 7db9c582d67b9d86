"""Adapters from rows: what they change, what they leave alone to the last bit, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import predictor
from predictor import api, cli
from predictor.calibrate.adapter import CONFIG, WEIGHTS, Adapter, load_adapter
from predictor.calibrate.terms import PLACE
from predictor.errors import AdapterError, UnknownDeviceError
from predictor.fit.adapting import fit_from_rows, readings_of, row_hashes
from predictor.graph.ir import OpGraph
from predictor.hardware.catalogue import resolve_device
from predictor.traces.sources.registry import read_source

CHECKPOINT = "neusight-protocol-v2"
"""The smallest one shipped; it never saw the L4."""
DEVICE, OTHERS = "nvidia-l4", ("nvidia-t4", "nvidia-h100-sxm-80gb")
SLOWER = 1.5


@pytest.fixture(scope="module")
def network() -> api.Predictor:
    return api.load(CHECKPOINT)


@pytest.fixture(scope="module")
def program() -> OpGraph:
    """Two matrix products and what lies between, inference."""
    module = torch.nn.Sequential(
        torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)
    )
    return api.capture(module, torch.empty(2048, 1024))


def csv_of(folder: Path, rows: pd.DataFrame, name: str = "rows.csv") -> Path:
    path = folder / name
    rows.to_csv(path, index=False)
    return path


def products(times_us: list[float], device: str = DEVICE) -> pd.DataFrame:
    """Matrix products of growing size with the times given."""
    sizes = 512 * np.arange(1, len(times_us) + 1)
    return pd.DataFrame({
        "device": device, "op": "linear", "batch": 1, "m": sizes, "n": 2048, "k": 1024,
        "dtype": "fp32", "context": "device", "latency_us": times_us,
    })  # fmt: skip


@pytest.fixture(scope="module")
def slow_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve products, each `SLOWER` times as long as the checkpoint says."""
    folder = tmp_path_factory.mktemp("rows")
    first = csv_of(folder, products([1000.0] * 12))
    found = readings_of(read_source("rows", [first]), api.load(CHECKPOINT))
    predicted = np.exp(found.readings.log_predicted_N)
    return csv_of(folder, products([float(SLOWER * t) for t in predicted]))


@pytest.fixture(scope="module")
def adapter(slow_rows: Path) -> Adapter:
    return fit_from_rows(DEVICE, [slow_rows], checkpoint=CHECKPOINT)


def test_a_device_slower_than_predicted_is_predicted_slower(
    adapter: Adapter, network: api.Predictor, program: OpGraph
) -> None:
    plain, own = (
        api.estimate(program, device=DEVICE, checkpoint=network, adapter=a) for a in (None, adapter)
    )
    ratio = own.prediction.kernel_us / plain.prediction.kernel_us
    product = np.array([k.op == "linear" for k in plain.graph.kernels])
    assert ratio[product] == pytest.approx(SLOWER, rel=0.08)
    assert 0.9 <= ratio[~product].max() < 1.3  # no row told of the kernel between them
    assert own.latency_us > 1.2 * plain.latency_us
    assert own.adapter is not None and own.to_json()["adapter"] == adapter.line
    assert adapter.line in own.warnings
    assert any("zero-shot" in w for w in plain.warnings)
    assert not any("zero-shot" in w for w in own.warnings)

    def width(one: api.Estimate) -> float:
        return float(np.log(one.step.upper_us / one.step.lower_us))

    assert width(own) < width(plain)
    assert own.step.lower_us <= own.latency_us <= own.step.upper_us


def test_time_held_at_the_physical_floor_is_told(
    adapter: Adapter, network: api.Predictor, program: OpGraph
) -> None:
    """Where a correction asks for less than the device can do, intervals have no lower side."""
    plain = api.estimate(program, device=DEVICE, checkpoint=network, adapter=adapter)
    assert not any("physical floor" in w for w in plain.warnings)
    down = adapter.posterior.mean_A.copy()
    down[adapter.posterior.active_A == PLACE["all"]] -= np.log(20.0)
    fast = replace(adapter, posterior=replace(adapter.posterior, mean_A=down))
    own = api.estimate(program, device=DEVICE, checkpoint=network, adapter=fast)
    assert own.prediction.kernel_lower_us == pytest.approx(own.prediction.floor_us)
    assert any("100% of the kernels' time is held at the physical floor" in w for w in own.warnings)


@pytest.mark.parametrize("device", OTHERS)
def test_other_devices_stay_as_they_are_to_the_last_bit(
    device: str, adapter: Adapter, network: api.Predictor, program: OpGraph
) -> None:
    plain = api.compare(program, devices=[device], checkpoint=network)
    both = api.compare(program, devices=[DEVICE, device], checkpoint=network, adapter=adapter)
    before, after = plain.estimates[0].prediction, both.estimates[1].prediction
    for name in ("kernel_us", "kernel_lower_us", "kernel_upper_us"):
        assert getattr(before, name).tobytes() == getattr(after, name).tobytes()
    assert (before.step, before.phases) == (after.step, after.phases)


def test_errors_before_and_after_are_told(adapter: Adapter) -> None:
    facts = adapter.facts
    assert facts["rows"] == facts["rows_kernel"] == 12
    assert facts["error_before"] == pytest.approx(1 - 1 / SLOWER, rel=1e-3)
    assert facts["error_after"] < 0.05


def test_the_folder_holds_all_of_it(adapter: Adapter, tmp_path: Path) -> None:
    adapter.save(tmp_path / "a")
    again = load_adapter(tmp_path / "a")
    assert again.line == adapter.line
    assert again.posterior.weights_T().tobytes() == adapter.posterior.weights_T().tobytes()
    assert again.device_facts == adapter.device_facts
    assert again.check_device(resolve_device(DEVICE))
    assert sum(f.stat().st_size for f in (tmp_path / "a").iterdir()) < 200_000
    text = (tmp_path / "a" / CONFIG).read_text(encoding="utf-8")
    assert "class matmul" in text and CHECKPOINT in text
    adapter.save(tmp_path / "a")  # its own folder is replaced
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("keep")
    with pytest.raises(AdapterError, match="something else"):
        adapter.save(tmp_path / "b")


@pytest.mark.parametrize("damage", ["weights", "config", "version", "missing"])
def test_a_damaged_folder_is_refused(damage: str, adapter: Adapter, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    adapter.save(folder)
    config = folder / CONFIG
    if damage == "weights":
        (folder / "adapter.safetensors").write_bytes(b"nothing")
    elif damage == "config":
        config.write_text("device = ")
    elif damage == "version":
        config.write_text(config.read_text().replace("format_version = 3", "format_version = 9"))
    else:
        config.unlink()
    with pytest.raises(AdapterError, match="predictor calibrate"):
        load_adapter(folder)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("error_before", None, "'error_before' is missing"),
        ("rows", '"x"', "rows = 'x' is no count"),
        ("rows", "3", "not the sum of its kinds"),
        ("error_after", "nan", "error_after = nan is no finite number"),
        ("noise_scale", "-9.7", "noise_scale = -9.7 is no finite number above 0"),
        ("interval_scale", "nan", "interval_scale = nan is no finite number above 0"),
        ("device", "4", "device = 4 is no text"),
        ("weights_sha256", None, "'weights_sha256' is missing"),
    ],
)
def test_a_fact_that_is_missing_or_of_another_type_is_refused(
    name: str, value: str | None, told: str, adapter: Adapter, tmp_path: Path
) -> None:
    adapter.save(tmp_path)
    config = tmp_path / CONFIG
    lines = config.read_text(encoding="utf-8").splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"{name} = "))
    lines[at] = f"renamed_{lines[at]}" if value is None else f"{name} = {value}"
    config.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(AdapterError, match="predictor calibrate") as refused:
        load_adapter(tmp_path)
    assert told in str(refused.value)


def test_weights_that_were_changed_after_the_fit_are_refused(
    adapter: Adapter, tmp_path: Path
) -> None:
    """Zeros in the covariance are finite, of its shape, and would narrow every interval."""
    adapter.save(tmp_path)
    weights = tmp_path / WEIGHTS
    data = weights.read_bytes()
    weights.write_bytes(data[:-4000] + bytes(4000))
    with pytest.raises(AdapterError, match="is not what"):
        load_adapter(tmp_path)


def test_another_checkpoint_or_other_facts_are_refused(
    adapter: Adapter, network: api.Predictor, program: OpGraph
) -> None:
    other = replace(adapter, checkpoint_key="0" * 64)
    with pytest.raises(AdapterError, match="belongs to checkpoint"):
        api.estimate(program, device=DEVICE, checkpoint=network, adapter=other)
    wider = replace(resolve_device(DEVICE), memory_bw_gbps=900.0)
    with pytest.raises(AdapterError, match="memory_bw_gbps"):
        api.estimate(program, device=wider, checkpoint=network, adapter=adapter)
    with pytest.raises(AdapterError, match="none of the devices is"):
        api.estimate(program, device="nvidia-t4", checkpoint=network, adapter=adapter)


def test_rows_that_no_adapter_can_be_fitted_on(tmp_path: Path, slow_rows: Path) -> None:
    with pytest.raises(UnknownDeviceError):
        fit_from_rows("nvidia-nothing", [slow_rows], checkpoint=CHECKPOINT)
    mixed = pd.concat([products([100.0] * 3), products([100.0] * 3, "nvidia-t4")])
    with pytest.raises(AdapterError, match="nvidia-l4, nvidia-t4"):
        fit_from_rows(DEVICE, [csv_of(tmp_path, mixed)], checkpoint=CHECKPOINT)
    with pytest.raises(AdapterError, match="nvidia-t4"):
        fit_from_rows("nvidia-t4", [slow_rows], checkpoint=CHECKPOINT)
    good = pd.read_csv(slow_rows)
    for factor in (1e3, 1e-3):  # nanoseconds, milliseconds
        times = csv_of(tmp_path, good.assign(latency_us=good["latency_us"] * factor), "u.csv")
        with pytest.raises(AdapterError, match="microseconds"):
            fit_from_rows(DEVICE, [times], checkpoint=CHECKPOINT)
    noisy = csv_of(tmp_path, good.assign(flag="cold_cache"), "n.csv")
    with pytest.raises(AdapterError, match="at least one is needed: measure kernels"):
        fit_from_rows(DEVICE, [noisy], checkpoint=CHECKPOINT)
    loaded = csv_of(tmp_path, good.assign(flag="other_load"), "l.csv")
    with pytest.raises(AdapterError, match="measure again on a quiet machine, with"):
        fit_from_rows(DEVICE, [loaded], checkpoint=CHECKPOINT)


def test_a_dtype_that_no_term_knows_is_left_out_and_counted(
    tmp_path: Path, network: api.Predictor
) -> None:
    rows = products([1000.0, 2000.0, 3000.0]).assign(dtype=["fp32", "complex64", "complex64"])
    found = readings_of(read_source("rows", [csv_of(tmp_path, rows)]), network)
    assert len(found.readings) == 1
    assert found.left_out == {"kernels in complex64, which no correction knows": 2}


def test_equal_kernels_are_one_reading_of_their_median_time(
    tmp_path: Path, network: api.Predictor
) -> None:
    times = [900.0, 1000.0, 1400.0]
    same = products([1000.0]).loc[[0, 0, 0]].assign(latency_us=times)
    rows = pd.concat([same, products([1000.0]).assign(context="in_step")])
    found = readings_of(read_source("rows", [csv_of(tmp_path, rows)]), network)
    assert np.exp(found.readings.log_measured_N) == pytest.approx([1000.0, 1000.0])
    assert len(set(found.hashes)) == 2  # rows of what was measured prove nothing
    many = csv_of(tmp_path, products([1000.0]).loc[[0] * 50], "m.csv")
    facts = fit_from_rows(DEVICE, [many], checkpoint=CHECKPOINT).facts
    assert facts["rows"] == 1
    assert facts["error_after"] == facts["error_before"] > 0


def test_one_row_is_enough_and_steps_count_too(tmp_path: Path) -> None:
    step = pd.DataFrame({
        "device": [DEVICE], "model": "resnet-18", "mode": "infer", "batch": 8, "dtype": "fp32",
        "measure": "wall", "latency_us": 30_000.0,
    })  # fmt: skip
    found = fit_from_rows(DEVICE, [csv_of(tmp_path, step)], checkpoint=CHECKPOINT)
    assert found.facts["rows_step"] == 1
    assert found.facts["step_error_before"] > 0


def test_the_host_s_launch_is_in_the_time_of_an_op_timed_inside_a_step(
    tmp_path: Path, network: api.Predictor
) -> None:
    """A short op waits for its launch under a timer around it, and not as device time."""
    small = products([50.0]).assign(m=8, n=8, k=8)
    inside, alone = (
        readings_of(
            read_source("rows", [csv_of(tmp_path, small.assign(context=c), f"{c}.csv")]), network
        ).readings
        for c in ("in_step", "device")
    )
    assert inside.host_us_N[0] > 1.0 > alone.host_us_N[0]
    assert inside.log_predicted_N[0] > alone.log_predicted_N[0] + 0.1
    assert inside.kind_N[0] == alone.kind_N[0]


def test_a_row_is_known_again_wherever_it_is_read_from(slow_rows: Path, adapter: Adapter) -> None:
    rows = read_source("rows", [slow_rows]).kernels
    assert set(row_hashes(rows, "kernels")) == set(adapter.fitted_rows)
    again = rows.assign(latency_us=rows["latency_us"] + 1)
    assert set(row_hashes(again, "kernels")) == set(adapter.fitted_rows)  # the same, once more
    other = rows.assign(dim_m=rows["dim_m"] + 1)
    assert not set(row_hashes(other, "kernels")) & set(adapter.fitted_rows)


def test_the_command_writes_to_the_users_folder_and_auto_finds_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    slow_rows: Path,
    network: api.Predictor,
    program: OpGraph,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PREDICTOR_ADAPTERS", str(tmp_path))
    call = ["calibrate", "--device", DEVICE, "--rows", str(slow_rows), "--checkpoint", CHECKPOINT]
    with pytest.raises(SystemExit) as ended:
        cli.main(call)
    assert ended.value.code == 0
    assert "calibrated for nvidia-l4 on 12 measured rows" in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == [f"{DEVICE}@{CHECKPOINT}"]
    plain = api.estimate(program, device=DEVICE, checkpoint=network)
    assert plain.adapter is None  # found only when asked for
    assert predictor.estimate(program, device=DEVICE, checkpoint=network, adapter="auto").adapter
    other = predictor.estimate(program, device="nvidia-t4", checkpoint=network, adapter="auto")
    assert other.adapter is None
    assert f"no adapter in {tmp_path} fits; nothing is corrected" in caplog.text
    file = tmp_path / f"{DEVICE}@{CHECKPOINT}" / "adapter.toml"
    assert api.estimate(program, device=DEVICE, checkpoint=network, adapter=file).adapter


def test_an_adapter_of_another_type_is_refused(program: OpGraph, network: api.Predictor) -> None:
    wrong: Any = {"device": DEVICE}
    with pytest.raises(AdapterError, match="adapter is dict: give a folder"):
        api.estimate(program, device=DEVICE, checkpoint=network, adapter=wrong)


def _steps(times: list[float], batch: object = 8) -> pd.DataFrame:
    return pd.DataFrame({
        "device": DEVICE, "model": "resnet-18", "mode": "infer", "batch": batch, "dtype": "fp32",
        "measure": "wall", "latency_us": times,
    })  # fmt: skip


def test_equal_steps_are_one_reading_and_contradictions_are_told(
    tmp_path: Path, network: api.Predictor, caplog: pytest.LogCaptureFixture
) -> None:
    rows = _steps([20_000.0, 30_000.0, 90_000.0, 10_000.0], batch=[8, 8, 8, 1])
    found = readings_of(read_source("rows", [csv_of(tmp_path, rows)]), network)
    assert sorted(np.exp(found.readings.log_measured_N)) == pytest.approx([10_000.0, 30_000.0])
    assert "1 of 1 that were measured more than once differ by a factor of 1.5 or more" in (
        caplog.text
    )


def test_many_readings_of_few_kernels_make_a_small_adapter(tmp_path: Path) -> None:
    many = products([1000.0, 2000.0]).loc[[0, 1] * 15_000]
    adapter = fit_from_rows(DEVICE, [csv_of(tmp_path, many)], checkpoint=CHECKPOINT)
    adapter.save(tmp_path / "a")
    assert adapter.rows == 2
    assert sum(f.stat().st_size for f in (tmp_path / "a").iterdir()) < 200_000


def test_what_is_beyond_the_limit_is_chosen_over_the_whole_file_and_counted(
    tmp_path: Path, network: api.Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("predictor.fit.adapting.MOST_ROWS", 3)
    rows = _steps([float(1000 * b) for b in range(1, 9)], batch=list(range(1, 9)))
    found = readings_of(read_source("rows", [csv_of(tmp_path, rows)]), network)
    assert len(found.readings) == 3
    assert found.left_out == {"steps beyond 3 different rows": 5}
    assert max(np.exp(found.readings.log_measured_N)) > 3_500  # not the first three of the file


def test_a_folder_with_other_files_and_another_device_s_adapter_are_left_alone(
    tmp_path: Path, adapter: Adapter
) -> None:
    place = tmp_path / "a"
    adapter.save(place)
    adapter.save(place)  # its own adapter is replaced
    with pytest.raises(AdapterError, match=f"holds the adapter of {DEVICE}"):
        replace(adapter, device="nvidia-t4").save(place)
    (place / "rows.parquet").write_bytes(b"measured")
    with pytest.raises(AdapterError, match=r"something else than an adapter \(rows\.parquet\)"):
        adapter.save(place)
    assert (place / "rows.parquet").read_bytes() == b"measured"


def test_times_far_off_are_told_before_they_are_refused(
    tmp_path: Path, slow_rows: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = pd.read_csv(slow_rows)
    rows["latency_us"] *= 8
    fit_from_rows(DEVICE, [csv_of(tmp_path, rows)], checkpoint=CHECKPOINT)
    assert "times longer than predicted for" in caplog.text


def test_one_row_says_nothing_of_the_error_that_is_left(tmp_path: Path) -> None:
    one = fit_from_rows(DEVICE, [csv_of(tmp_path, products([1000.0]))], checkpoint=CHECKPOINT)
    assert one.line.endswith("one row cannot tell")


def test_rows_as_an_import_writes_them_are_taken(tmp_path: Path, slow_rows: Path) -> None:
    imported = read_source("rows", [slow_rows]).kernels
    imported = imported.assign(source="gptbench")
    imported.to_parquet(tmp_path / "kernels.parquet")
    again = read_source("rows", [tmp_path / "kernels.parquet"]).kernels
    assert set(again["source"]) == {"gptbench"}
    assert again["latency_us"].tolist() == imported["latency_us"].tolist()
