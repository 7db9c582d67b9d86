"""Sustained rates: laws, and the shares that measured kernels show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.errors import UnsupportedPrecision
from predictor.hardware.catalogue import load_catalogue, resolve_device
from predictor.hardware.device import Device, Software
from predictor.hardware.peaks import peak_tflops, supported_dtypes
from predictor.hardware.sustained import (
    cache_bw_gbps,
    cache_mib,
    dram_share,
    energy_pj_per_flop,
    power_capped_tflops,
    sustained_bw_gbps,
    sustained_tflops,
)

DEVICES = [d for d in load_catalogue().values() if d.scope != "package"]


def share(name: str, dtype: str = "fp32") -> float:
    device = resolve_device(name)
    peak = peak_tflops(device, op_class="matmul", dtype=dtype, software=Software())
    return sustained_tflops(device, peak, dtype) / peak


def board(**changes: object) -> Device:
    values = {"tdp_w": 300.0, "process_nm": 7.0, "units": 100.0, "clock_boost_mhz": 1500.0}
    return Device(id="board", vendor="nvidia", kind="gpu", **{**values, **changes})  # type: ignore[arg-type]


def test_boards_that_power_binds_and_boards_that_it_does_not():
    # large fp32 products reach 0.38 on L4, 0.86 or more on V100 and A100
    assert 0.35 <= share("nvidia-l4") <= 0.50
    assert share("nvidia-v100-pcie-32gb") >= 0.85
    assert share("nvidia-a100-sxm-80gb") >= 0.95
    assert 0.5 <= share("nvidia-t4") <= 0.75
    assert 0.5 <= share("nvidia-tesla-p4") <= 0.85


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.id)
def test_sustained_is_positive_and_never_above_the_peak(device):
    for dtype in supported_dtypes(device):
        try:
            peak = peak_tflops(device, op_class="matmul", dtype=dtype, software=Software())
        except UnsupportedPrecision:
            continue
        assert 0 < sustained_tflops(device, peak, dtype) <= peak
    if device.memory_bw_gbps is not None:
        assert 0.5 < sustained_bw_gbps(device, device.memory_bw_gbps) / device.memory_bw_gbps < 1
        assert cache_bw_gbps(device, device.memory_bw_gbps) > device.memory_bw_gbps


@given(watts=st.floats(5, 2000), less=st.floats(0.1, 0.99), peak=st.floats(0.1, 2000))
def test_less_power_never_sustains_more(watts, less, peak):
    full, capped = board(tdp_w=watts), board(tdp_w=watts * less)
    assert sustained_tflops(capped, peak, "fp32") <= sustained_tflops(full, peak, "fp32")


def test_power_is_spent_by_hand_worked_energy():
    # 15 pJ at 12 nm: 300 W are 20 TFLOP/s, on half the node 2 ** 1.2 times as much
    old, new = board(process_nm=12.0), board(process_nm=6.0)
    assert energy_pj_per_flop(old, "fp32") == 15.0
    assert power_capped_tflops(old, "fp32") == pytest.approx(20.0)
    assert energy_pj_per_flop(new, "fp32") == pytest.approx(15.0 * 2**-1.2)
    assert energy_pj_per_flop(board(process_nm=None), "fp32") is None


def test_matrix_units_spend_less_and_those_fed_from_shared_memory_the_least():
    plain = board(process_nm=5.0, matrix16_flop_per_clk_unit=1024.0, compute_capability="8.9")
    assert energy_pj_per_flop(plain, "bf16") == 1.3
    assert power_capped_tflops(plain, "fp16") == pytest.approx(300 / 1.3)
    assert energy_pj_per_flop(plain, "fp8") == pytest.approx(0.78)
    hopper = board(process_nm=5.0, matrix16_flop_per_clk_unit=4096.0, compute_capability="9.0")
    assert energy_pj_per_flop(hopper, "bf16") == 0.75
    none = board(process_nm=12.0, matrix16_flop_per_clk_unit=None)
    assert energy_pj_per_flop(none, "fp16") == 7.5


def test_little_power_for_much_bandwidth_streams_slower():
    # 250 pJ a byte: 300 W carry 1,200 GB/s of the 1,400 that GDDR of 1,800 sustains
    assert sustained_bw_gbps(board(memory_type="GDDR7"), 1800.0) == pytest.approx(1200.0)
    assert sustained_bw_gbps(board(memory_type="GDDR7"), 1000.0) == pytest.approx(780.0)
    assert sustained_bw_gbps(board(memory_type="HBM3"), 1800.0) == pytest.approx(1584.0)


def test_smooth_minimum():
    # equal rates give 2 ** (-1/6) of either; far apart, the smaller one
    device = board(process_nm=12.0)
    assert sustained_tflops(device, 20.0, "fp32") == pytest.approx(20.0 * 2 ** (-1 / 6))
    assert sustained_tflops(device, 1.0, "fp32") == pytest.approx(1.0)
    assert sustained_tflops(device, 1e4, "fp32") == pytest.approx(20.0)


@pytest.mark.parametrize("change", [{"tdp_w": None}, {"process_nm": None}, {"kind": "tpu"}])
def test_unknown_power_caps_nothing(change):
    device = replace(board(), **change)
    assert power_capped_tflops(device, "fp32") == float("inf")
    assert sustained_tflops(device, 12.5, "fp32") == 12.5


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("nvidia-a100-sxm-80gb", 0.85, 0.93), ("nvidia-v100-pcie-32gb", 0.85, 0.93),
        ("nvidia-p100-pcie-16gb", 0.72, 0.80), ("nvidia-t4", 0.75, 0.81),
        ("nvidia-l4", 0.75, 0.81), ("nvidia-tesla-p4", 0.75, 0.81),
    ],
)  # fmt: skip
def test_share_of_the_bandwidth_that_streaming_kernels_reach(name, low, high):
    assert low <= dram_share(resolve_device(name)) <= high


def test_cache_is_the_larger_level_and_unknown_when_neither_is_known():
    assert cache_mib(board(l2_mib=4.0, llc_mib=256.0)) == 256.0
    assert cache_mib(board(l2_mib=6.0)) == 6.0
    assert cache_mib(board()) is None
