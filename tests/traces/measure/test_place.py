"""The device file beside rows: what is written, kept, replaced and refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from predictor.errors import DataError, DeviceFileError
from predictor.hardware.device_file import device_file_text, load_device_file
from predictor.hardware.probe import Processor, device_of
from predictor.traces.measure import place as place_module
from predictor.traces.measure.bandwidth import Bandwidth
from predictor.traces.measure.place import (
    Place,
    beside_rows,
    checked_text,
    deadline_after,
    open_rows,
    place_at,
    positive,
)

HERE = Processor(
    name="Fast CPU", vendor="amd", family=25, model=17, cores=1, clock_mhz=3600.0,
    clock_boost_mhz=None, instruction_sets=("avx2", "fma"), l1_kib=32.0, l2_kib=1024.0,
    l3_kib=None, memory_gib=8.0,
)  # fmt: skip
ROW = {"device": HERE.device_id, "op": "add", "latency_us": 1.0}


@pytest.fixture
def rates(monkeypatch) -> list[Bandwidth]:
    """Bandwidths that are measured, one after the other, on a processor that nobody knows."""
    told: list[Bandwidth] = []
    monkeypatch.setattr(place_module, "processor", lambda: HERE)
    monkeypatch.setattr("predictor.traces.measure.local.processor", lambda: HERE)
    monkeypatch.setattr(
        "predictor.traces.measure.local.stream_bandwidth",
        lambda cache_bytes, threads: told.pop(0),
    )
    return told


def placed(out: Path, **named) -> Place:
    return place_at(lambda _: beside_rows(out), "cpu", **named)


def with_row(out: Path, **named) -> Place:
    place = placed(out, **named)
    rows = open_rows(out, "kernels", place, resume=True)
    rows.add("point", [{**ROW, "device": place.device.device.id}])
    rows.write()
    return place


def test_a_device_file_comes_with_the_first_row_and_stays(tmp_path, rates):
    out, file = tmp_path / "rows.parquet", tmp_path / "rows.device.toml"
    rates += [Bandwidth(gbps=15.6), Bandwidth(gbps=31.2), Bandwidth(gbps=99.0)]
    first = placed(out)
    assert not file.exists() and first.note == "memory 20 GB/s"
    open_rows(out, "kernels", first, resume=False).write()
    assert not out.exists() and not file.exists()  # neither without a row
    with_row(out)
    assert load_device_file(file).memory_bw_gbps == 40.0
    again = with_row(tmp_path / "more.parquet")  # measured with it: kept
    assert again.note == "memory 40 GB/s" and len(rates) == 1
    assert (tmp_path / "more.device.toml").read_bytes() == file.read_bytes()
    assert placed(out).note == "memory 40 GB/s as in rows.device.toml"


def test_a_better_bandwidth_replaces_one_without_rows(tmp_path, rates):
    out, file = tmp_path / "rows.parquet", tmp_path / "rows.device.toml"
    file.write_text(device_file_text(device_of(HERE, stream_gbps=15.6, other_share=0.5)))
    rates += [Bandwidth(gbps=14.0), Bandwidth(gbps=31.2)]
    assert placed(out).device.device.memory_bw_gbps == 20.0
    with_row(out)
    assert load_device_file(file).memory_bw_gbps == 40.0


def test_a_file_that_a_user_wrote_is_not_replaced(tmp_path, rates):
    own = replace(device_of(HERE, stream_gbps=15.6), notes="From the board's manual.")
    (tmp_path / "rows.device.toml").write_text(device_file_text(own))
    assert placed(tmp_path / "rows.parquet").device.device == own


def test_a_bandwidth_beside_other_load_says_so_for_good(tmp_path, rates):
    rates.append(Bandwidth(gbps=15.6, other_share=0.5))
    place = with_row(tmp_path / "rows.parquet")
    assert place.note.endswith("measured beside other load and may be too low")
    kept = load_device_file(tmp_path / "rows.device.toml")
    assert "beside other load (50% of the cores)" in (kept.notes or "")
    assert "may be too low" in placed(tmp_path / "rows.parquet").note


@pytest.mark.parametrize("share", [0.0, 0.9])
def test_a_bandwidth_that_no_reader_takes_is_refused(tmp_path, rates, share):
    rates.append(Bandwidth(gbps=5.0, other_share=share))
    with pytest.raises(DataError, match=r"6\.4 GB/s.* takes 10 to 20,000: .*quiet.*--as") as told:
        placed(tmp_path / "rows.parquet")
    assert ("beside other load" in str(told.value)) is (share > 0)
    assert "looks like" not in str(told.value) and not list(tmp_path.iterdir())


def test_any_rule_that_a_device_file_breaks_is_told_before_it_is_written():
    broken = replace(device_of(HERE, stream_gbps=30.0), l2_mib=1e9)
    with pytest.raises(DeviceFileError, match=r"makes no device file \(l2_mib.*--as"):
        checked_text(broken)
    slow = device_of(replace(HERE, clock_mhz=1000.0), stream_gbps=30.0)
    with pytest.raises(DeviceFileError, match=r"peak_fp32_tflops = 0\.032: must be") as told:
        checked_text(slow)
    assert "looks like" not in str(told.value)


def test_a_device_file_of_another_device_is_refused(tmp_path, rates):
    file = tmp_path / "rows.device.toml"
    other = replace(device_of(HERE, stream_gbps=30.0), id="someone-elses-cpu")
    file.write_text(device_file_text(other))
    with pytest.raises(DeviceFileError, match=r"describes 'someone-elses-cpu', this machine is"):
        placed(tmp_path / "rows.parquet")
    assert placed(tmp_path / "rows.parquet", name=file).device.device == other
    elsewhere = tmp_path / "mine.toml"
    elsewhere.write_text(device_file_text(device_of(HERE, stream_gbps=31.0)))
    with pytest.raises(DeviceFileError, match="another device than the one given"):
        placed(tmp_path / "rows.parquet", name=elsewhere)


@pytest.mark.parametrize("threads", [0, -1, 10**6])
def test_threads_that_the_machine_has_not_are_refused(tmp_path, rates, threads):
    with pytest.raises(DataError, match=f"{threads} threads: this machine runs"):
        placed(tmp_path / "rows.parquet", name="amd-epyc-9004-2vcpu", threads=threads)


def test_rows_of_one_file_are_of_one_device_and_number_of_threads(tmp_path, rates):
    out = tmp_path / "rows.parquet"
    rates.append(Bandwidth(gbps=15.6))
    place = with_row(out)
    for other, message in (
        (replace(place.device, threads=7), "with threads 1, this is 7"),
        (replace(place.device, device=replace(place.device.device, id="b")), "with device fast-"),
        (replace(place.device, tf32=True), "with tf32 False, this is True"),
    ):
        with pytest.raises(DataError, match=message):
            open_rows(out, "kernels", replace(place, device=other), resume=True)
    assert open_rows(out, "kernels", place, resume=True).facts["threads"] == 1


def test_a_file_without_facts_is_gone_on_with_and_claims_none(tmp_path, rates):
    out = tmp_path / "rows.parquet"
    rates.append(Bandwidth(gbps=15.6))
    place = with_row(out)
    rows = open_rows(out, "kernels", place, resume=True)
    rows.facts = {}
    rows.write()
    again = open_rows(out, "kernels", place, resume=True)
    assert "threads" not in again.facts and "measured" in again.facts
    foreign = replace(place.device, device=replace(place.device.device, id="b"))
    with pytest.raises(DataError, match=f"with device {HERE.device_id}"):  # its rows tell
        open_rows(out, "kernels", replace(place, device=foreign), resume=True)
    assert len(pd.read_parquet(out)) == 1


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_times_that_are_none_are_refused(value):
    with pytest.raises(DataError, match=r"--minutes .*: must be a number above 0"):
        deadline_after(value)
    with pytest.raises(DataError, match="--seconds"):
        positive("--seconds", value)
    assert deadline_after(None) is None and deadline_after(1.0) is not None
