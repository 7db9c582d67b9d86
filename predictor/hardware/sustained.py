"""Rates a device sustains, beside its datasheet peaks: power, bandwidth class, cache.

A peak is reached only while power and clocks allow. The model here is physics with few constants:

* Energy of an arithmetic operation falls with the process node. Vector fp32 costs
  `ENERGY_PJ_12NM * (process_nm / 12) ** ENERGY_EXPONENT` picojoule per FLOP. The constants come
  from two power-limited boards, Tesla T4 (12 nm, 70 W) and Tesla P4 (16 nm, 75 W), whose large
  fp32 matrix products sustain 4.7 and 3.5 TFLOP/s (NeuSight sweeps, kernels above 10 ms); the
  exponent agrees with the foundries' own figures (power at equal speed: 16 to 7 nm -65%, 7 to
  5 nm -30%).
* A 16-bit FLOP of a matrix unit costs `MATRIX_PJ` where its operands come through registers, on
  any process node: the largest GEMMs that a power cap bounds use 1.5 (T4, 12 nm), 1.2 (A100 PCIe,
  7 nm) and 1.3 pJ (L40S, 5 nm). Units that read operands from shared memory by themselves (compute
  capability 9.0 and 10) use 0.80 at 5 nm and 0.57 at 4 nm: `ASYNC_MATRIX_PJ_5NM`, by node. Other
  dtypes by `MATRIX_ENERGY`: fp8 takes 0.52 to 0.65 of 16-bit on the same devices, fp4 0.35.
* The power-capped rate is board power over that energy; the sustained rate is the smooth minimum
  of the peak and the capped rate.
* A byte from GDDR memory through the chip costs about `GDDR_PJ_PER_BYTE`. It was 513 on a 40 nm
  board (Choi et al. 2013, "A roofline model of energy"); L4 and T4 stream at their class's share,
  so it is at most 280 to 310 there; an RTX PRO 6000 Max-Q (300 W for 1.8 TB/s) streams 1.2 times
  slower than its class, from which the constant was set. It binds such boards alone.
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
MATRIX_PJ = 1.3
"""Whole-board energy of one 16-bit FLOP of a matrix unit fed from registers, picojoule."""
ASYNC_MATRIX_PJ_5NM = 0.75
"""The same of a matrix unit that reads shared memory by itself, at 5 nm."""
ASYNC_CAPABILITIES = ("9.", "10.")
MATRIX_ENERGY = {
    "tf32": 2.0, "fp16": 1.0, "bf16": 1.0, "fp8": 0.6, "int8": 0.6, "fp4": 0.35,
}  # fmt: skip
"""Energy of one FLOP of a matrix unit relative to 16-bit."""
VECTOR_ENERGY = {"fp64": 2.0, "fp32": 1.0, "fp16": 0.5, "bf16": 0.5, "int8": 0.25, "fp8": 0.25}
"""Energy of one FLOP of a vector unit relative to fp32."""
GDDR_PJ_PER_BYTE = 250.0
SOFT_MIN_POWER = 6.0
L2_BYTES_PER_CLOCK = 22.0
"""Sustained last-level cache bytes per clock and unit (64 nominal on NVIDIA parts)."""
DRAM_SHARE_HBM = 0.88
DRAM_SHARE_HBM_PASCAL = 0.76
"""The first HBM2 controllers stream less (P100: about 550 of 732 GB/s in streaming tests)."""
DRAM_SHARE_OTHER = 0.78


def energy_pj_per_flop(device: Device, dtype: str) -> float | None:
    """Whole-board energy per FLOP, picojoule, by hardware path; None when the node is unknown."""
    if device.process_nm is None:
        return None
    if dtype in MATRIX_ENERGY and device.matrix16_flop_per_clk_unit is not None:
        pj = MATRIX_PJ
        if (device.compute_capability or "").startswith(ASYNC_CAPABILITIES):
            pj = ASYNC_MATRIX_PJ_5NM * (device.process_nm / 5.0) ** ENERGY_EXPONENT
        return pj * MATRIX_ENERGY[dtype]
    share = VECTOR_ENERGY.get(dtype, 1.0)
    return float(ENERGY_PJ_12NM * (device.process_nm / 12.0) ** ENERGY_EXPONENT * share)


def power_capped_tflops(device: Device, dtype: str) -> float:
    """Rate at which the board power is used up, 1e12 FLOP/s; infinite when unknown."""
    energy = energy_pj_per_flop(device, dtype)
    if device.tdp_w is None or energy is None or device.kind != "gpu":
        return math.inf
    return device.tdp_w / energy


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
    """Sustained DRAM bandwidth, 1e9 bytes/s: the share of its class, or what the power allows."""
    sustained = peak_gbps * dram_share(device)
    if device.tdp_w is None or not (device.memory_type or "").upper().startswith("GDDR"):
        return sustained
    return min(sustained, device.tdp_w / GDDR_PJ_PER_BYTE * 1e3)


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
