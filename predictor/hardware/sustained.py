"""Rates a device sustains, beside its datasheet peaks: power, bandwidth class, cache.

A peak is reached only while power and clocks allow. The model here is physics with few constants:

* Energy of an arithmetic operation falls with the process node. Vector fp32 costs
  `ENERGY_PJ_12NM * (process_nm / 12) ** ENERGY_EXPONENT` picojoule per FLOP. The constants come
  from two power-limited boards, Tesla T4 (12 nm, 70 W) and Tesla P4 (16 nm, 75 W), whose large
  fp32 matrix products sustain 4.7 and 3.5 TFLOP/s (NeuSight sweeps, kernels above 10 ms); the
  exponent agrees with the foundries' own figures (power at equal speed: 16 to 7 nm -65%, 7 to
  5 nm -30%).
* The power-capped rate is board power over that energy; the sustained rate is the smooth minimum
  of the peak and the capped rate.
* DRAM sustains a fixed share of its peak by memory class (`reference` elementwise rows: HBM 0.87
  to 0.90 except the first generation, GDDR 0.75 to 0.81).
* The last-level cache serves about `L2_BYTES_PER_CLOCK` bytes a clock and unit.

A prior for features and floors of *expected* time, never a physical bound: see `peaks.py`.
"""

from __future__ import annotations

import math

from predictor.hardware.device import Device

ENERGY_PJ_12NM = 15.0
"""Whole-board energy of one vector fp32 FLOP at 12 nm, picojoule."""
ENERGY_EXPONENT = 1.2
MATRIX_ENERGY_SHARE = {
    "fp64": 2.0, "fp32": 1.0, "tf32": 0.22, "fp16": 0.11, "bf16": 0.11, "fp8": 0.06,
    "int8": 0.06, "fp4": 0.035,
}  # fmt: skip
"""Energy of one FLOP relative to vector fp32: matrix units amortise operand movement."""
SOFT_MIN_POWER = 6.0
L2_BYTES_PER_CLOCK = 22.0
"""Sustained last-level cache bytes per clock and unit (64 nominal on NVIDIA parts)."""
DRAM_SHARE_HBM = 0.88
DRAM_SHARE_HBM_PASCAL = 0.76
"""The first HBM2 controllers stream less (P100: about 550 of 732 GB/s in streaming tests)."""
DRAM_SHARE_OTHER = 0.78


def energy_pj_per_flop(process_nm: float, dtype: str) -> float:
    """Whole-board energy per FLOP, picojoule, by process node and operand dtype."""
    share = MATRIX_ENERGY_SHARE.get(dtype, 1.0)
    return float(ENERGY_PJ_12NM * (process_nm / 12.0) ** ENERGY_EXPONENT * share)


def power_capped_tflops(device: Device, dtype: str) -> float:
    """Rate at which the board power is used up, 1e12 FLOP/s; infinite when unknown."""
    if device.tdp_w is None or device.process_nm is None or device.kind != "gpu":
        return math.inf
    return device.tdp_w / energy_pj_per_flop(device.process_nm, dtype)


def sustained_tflops(device: Device, peak_tflops: float, dtype: str) -> float:
    """Smooth minimum of the dtype's peak and the power-capped rate, 1e12 FLOP/s."""
    capped = power_capped_tflops(device, dtype)
    if math.isinf(capped) or math.isinf(peak_tflops):
        return min(peak_tflops, capped)
    p = SOFT_MIN_POWER
    low, high = sorted((peak_tflops, capped))
    return float(low * (1.0 + (low / high) ** p) ** (-1.0 / p))


def dram_share(device: Device) -> float:
    """Share of the peak DRAM bandwidth that streaming kernels reach."""
    if not (device.memory_type or "").upper().startswith("HBM"):
        return DRAM_SHARE_OTHER
    pascal = (device.architecture or "").startswith("Pascal")
    return DRAM_SHARE_HBM_PASCAL if pascal else DRAM_SHARE_HBM


def sustained_bw_gbps(device: Device, peak_gbps: float) -> float:
    """Sustained DRAM bandwidth, 1e9 bytes/s."""
    return peak_gbps * dram_share(device)


def cache_bw_gbps(device: Device, dram_gbps: float) -> float:
    """Last-level cache bandwidth, 1e9 bytes/s; never below the DRAM's."""
    if device.units is None or device.clock_boost_mhz is None:
        return 2.5 * dram_gbps
    rate = device.units * device.clock_boost_mhz * 1e-3 * L2_BYTES_PER_CLOCK
    return max(rate, 1.2 * dram_gbps)


def cache_mib(device: Device) -> float | None:
    """Capacity of the cache between the units and DRAM, MiB."""
    sizes = [s for s in (device.l2_mib, device.llc_mib) if s is not None]
    return max(sizes) if sizes else None
