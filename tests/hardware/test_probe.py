"""The processor at hand as a device: what is read, what follows, and the file that keeps it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from predictor.errors import DeviceFileError
from predictor.hardware import catalogue, probe
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device_file import adopt_device_file, device_file_text, load_device_file
from predictor.hardware.probe import Processor, device_of, processor

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC 9R14 96-Core Processor
cpu MHz\t\t: 2600.000
flags\t\t: fpu avx2 fma avx512f avx512_bf16 sse
"""
FOUND = Processor(
    name="AMD EPYC 9R14 96-Core Processor", vendor="amd", family=25, model=17, cores=2,
    clock_mhz=2600.0, clock_boost_mhz=None, instruction_sets=("avx2", "fma", "avx512f",
    "avx512_bf16"), l1_kib=32.0, l2_kib=1024.0, l3_kib=32768.0, memory_gib=8.0,
)  # fmt: skip


@pytest.fixture
def nothing_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_adopted", {})


def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system of files that tells of the processor `FOUND`."""
    proc, cpus = tmp_path / "proc", tmp_path / "cpus"
    proc.mkdir()
    (proc / "cpuinfo").write_text(CPUINFO)
    (proc / "meminfo").write_text("MemTotal:        8388608 kB\n")
    sizes = [(1, "Data", "32K"), (1, "Instruction", "32K"), (2, "Unified", "1024K"),
             (3, "Unified", "32768K")]  # fmt: skip
    for i, (level, kind, size) in enumerate(sizes):
        folder = cpus / "cpu0" / "cache" / f"index{i}"
        folder.mkdir(parents=True)
        (folder / "level").write_text(f"{level}\n")
        (folder / "type").write_text(f"{kind}\n")
        (folder / "size").write_text(f"{size}\n")
    monkeypatch.setattr(probe, "PROC", proc)
    monkeypatch.setattr(probe, "CPUS", cpus)


def test_what_the_system_tells(tmp_path, monkeypatch):
    system(tmp_path, monkeypatch)
    assert replace(processor(), cores=2) == FOUND
    assert FOUND.last_level_cache_bytes == 32 * 2**20


def test_a_system_that_tells_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "PROC", tmp_path)
    monkeypatch.setattr(probe, "CPUS", tmp_path)
    found = processor()
    assert (found.family, found.clock_mhz, found.last_level_cache_bytes) == (None, None, None)
    assert found.device_id and found.cores >= 1


def test_the_id_says_processor_and_cores():
    assert FOUND.device_id == "amd-epyc-9r14-96-core-family25-model17-2-cores"
    intel = replace(FOUND, name="Intel(R) Xeon(R) CPU @ 2.20GHz", family=None)
    assert intel.device_id == "intel-xeon-2-cores"


@pytest.mark.parametrize(
    ("vendor", "family", "sets", "flop"),
    [("amd", 25, ("fma", "avx512f"), 32), ("amd", 26, ("fma", "avx512f"), 64),
     ("intel", 6, ("avx2", "fma", "avx512f"), 64), ("intel", 6, ("avx2", "fma"), 32),
     ("arm", None, ("asimd",), 16), ("unknown", None, (), 8)],
)  # fmt: skip
def test_flop_a_clock_of_the_widest_unit(vendor, family, sets, flop):
    found = replace(FOUND, vendor=vendor, family=family, instruction_sets=sets)
    assert found.fp32_flop_per_clock == flop


def test_rates_follow_from_cores_and_clock():
    device = device_of(FOUND, stream_gbps=39.0)
    assert device.peak_fp32_tflops == pytest.approx(2 * 32 * 2600e-6, rel=1e-3)
    assert device.peak_bf16_tflops == pytest.approx(2 * device.peak_fp32_tflops, rel=1e-3)
    assert device.memory_bw_gbps == pytest.approx(39.0 / 0.78)
    assert (device.l2_mib, device.llc_mib, device.units) == (2.0, 32.0, 2.0)
    assert "39.0 GB/s measured" in device.notes


def test_a_device_file_gives_the_device_back(tmp_path):
    device = device_of(FOUND, stream_gbps=39.0)
    path = tmp_path / "one.device.toml"
    path.write_text(device_file_text(device))
    assert load_device_file(path) == device


def test_rows_may_name_an_adopted_device(tmp_path, nothing_adopted):
    device = device_of(FOUND, stream_gbps=39.0)
    path = tmp_path / "one.device.toml"
    path.write_text(device_file_text(device))
    assert adopt_device_file(path) == adopt_device_file(path) == resolve_device(device.id)
    other = tmp_path / "two.device.toml"
    other.write_text(device_file_text(replace(device, memory_bw_gbps=40.0)))
    with pytest.raises(DeviceFileError, match=r"one\.device\.toml and .*two\.device\.toml.*copy"):
        adopt_device_file(other)


def test_a_device_of_the_catalogue_is_not_adopted(nothing_adopted):
    catalogue.adopt_device(catalogue.resolve_device("nvidia-l4"))
    assert not catalogue.adopted_devices()
