"""What every field of `Device` means: unit, allowed range of a user's device file, one line each.

The table serves the device-file checks, `predictor devices` and the documentation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpec:
    """Unit, meaning and, for a number, the range that a device file may use."""

    meaning: str
    unit: str | None = None
    low: float | None = None
    high: float | None = None
    whole: bool = False
    """Whether the value is an integer."""

    @property
    def numeric(self) -> bool:
        """True for numbers, False for text."""
        return self.low is not None


def _text(meaning: str) -> FieldSpec:
    return FieldSpec(meaning=meaning)


def _number(
    meaning: str, unit: str | None, low: float, high: float, *, whole: bool = False
) -> FieldSpec:
    return FieldSpec(meaning=meaning, unit=unit, low=low, high=high, whole=whole)


def _peak(meaning: str, *, unit: str = "TFLOPS", low: float = 0.1) -> FieldSpec:
    return _number(meaning, unit, low, 50_000)


FIELDS: Mapping[str, FieldSpec] = {
    "id": _text("stable kebab-case key"),
    "vendor": _text("maker, lower case"),
    "kind": _text("gpu, tpu, cpu or npu"),
    "scope": _text("device, die (one of several in a package, what the framework sees) or package"),
    "name": _text("as the vendor's runtime prints it"),
    "architecture": _text("generation and chip"),
    "compute_capability": _text("CUDA capability, gfx target, Xe or TPU generation"),
    "year": _number("year of launch", None, 2000, 2100, whole=True),
    "process_nm": _number("process node", "nm", 0.5, 200),
    "unit_kind": _text("what a unit is: SM, CU, Xe-core, TensorCore, MME, core"),
    "units": _number("enabled units", None, 1, 10_000, whole=True),
    "fp32_flop_per_clk_unit": _number("2 x fp32 lanes of a unit", "FLOP/clk", 1, 100_000),
    "matrix16_flop_per_clk_unit": _number(
        "dense 16-bit matrix rate of a unit, fp32 accumulate", "FLOP/clk", 16, 10_000_000
    ),
    "clock_base_mhz": _number("guaranteed clock", "MHz", 50, 10_000),
    "clock_boost_mhz": _number("boost or maximum clock, behind the fp32 peak", "MHz", 50, 10_000),
    "clock_matrix_mhz": _number("clock that the 16-bit peak implies", "MHz", 50, 10_000),
    "memory_gib": _number("memory as sold", "GiB", 0.25, 8192),
    "memory_reported_gib": _number("memory as the runtime reports it", "GiB", 0.25, 8192),
    "memory_type": _text("HBM3, GDDR6, …"),
    "memory_bus_bits": _number("memory bus width", "bit", 8, 65_536),
    "memory_bw_gbps": _number("peak DRAM bandwidth", "GB/s", 10, 20_000),
    "l2_mib": _number("L2 (Gaudi: SRAM and cache)", "MiB", 0.01, 4096),
    "llc_mib": _number("cache behind L2: Infinity Cache, CPU L3, TPU CMEM", "MiB", 0.01, 8192),
    "l1_shared_kib_per_unit": _number(
        "L1 plus shared (AMD: LDS plus vector L1; TPU: VMEM; CPU: L1D)", "KiB", 1, 1_000_000
    ),
    "shared_kib_per_unit": _number("the part a kernel can allocate", "KiB", 1, 1_000_000),
    "register_kib_per_unit": _number("vector register file", "KiB", 1, 1_000_000),
    "peak_fp64_tflops": _peak("fp64, vector", low=0.001),
    "peak_fp64_matrix_tflops": _peak("fp64, matrix units", low=0.001),
    "peak_fp32_tflops": _peak("fp32, vector (CPU: at base clock)"),
    "peak_fp32_matrix_tflops": _peak("fp32, matrix units that take fp32 input"),
    "peak_tf32_tflops": _peak("tf32, dense matrix"),
    "peak_fp16_tflops": _peak("fp16, dense matrix, fp32 accumulate"),
    "peak_bf16_tflops": _peak("bf16, dense matrix, fp32 accumulate"),
    "peak_fp8_tflops": _peak("fp8, dense matrix, fp32 accumulate"),
    "peak_int8_tops": _peak("int8, dense, int32 accumulate", unit="TOPS"),
    "peak_fp4_tflops": _peak("fp4, dense matrix, fp32 accumulate"),
    "peak_fp16_vector_tflops": _peak("native half outside the matrix unit", low=0.001),
    "peak_fp16_fp16acc_tflops": _peak("fp16 with fp16 accumulate (PyTorch does not reach it)"),
    "unsupported_dtypes": _text("no hardware path in the matrix unit"),
    "matrix_unit": _text("matrix units of one unit"),
    "tdp_w": _number("default power limit of the device", "W", 1, 5000),
    "host_link": _text("link to the host"),
    "host_bw_gbps": _number("host link, each direction", "GB/s", 0.1, 2000),
    "scaleup_link": _text("link to neighbours, `none` where there is none"),
    "scaleup_bw_gbps": _number("all scale-up links, both directions summed", "GB/s", 1, 20_000),
    "scaleout_default": _text("network of the vendor's reference box"),
    "scaleout_bw_gbps": _number("network of that box, each direction", "GB/s", 0.05, 5000),
    "dies_per_package": _number("compute dies in a package", None, 1, 64, whole=True),
    "confidence": _text("high, medium or low: a judgement on compute peak and bandwidth"),
    "notes": _text("what a reader should know"),
}
"""One row a field of `Device`, in its order."""

PEAK_FIELDS: tuple[str, ...] = tuple(name for name in FIELDS if name.startswith("peak_"))

DTYPE_TOKENS: tuple[str, ...] = (
    "fp64", "fp16", "fp16_matrix", "bf16", "tf32", "int8", "int8_matrix", "fp8", "fp4",
)  # fmt: skip
"""What `unsupported_dtypes` may hold; `*_matrix`: arithmetic exists, but no matrix unit for it."""

_OTHER_UNITS: Mapping[str, tuple[tuple[float, str], ...]] = {
    "GB/s": ((1e3, "TB/s"), (1e-3, "MB/s"), (1e-6, "kB/s"), (1e-9, "B/s")),
    "TFLOPS": ((1e3, "PFLOPS"), (1e-3, "GFLOPS"), (1e-6, "MFLOPS"), (1e-12, "FLOPS")),
    "TOPS": ((1e3, "POPS"), (1e-3, "GOPS"), (1e-12, "OPS")),
    "MHz": ((1e3, "GHz"), (1e-3, "kHz"), (1e-6, "Hz")),
    "GiB": ((1024, "TiB"), (1 / 1024, "MiB"), (1 / 2**20, "KiB"), (1 / 2**30, "bytes")),
    "MiB": ((1024, "GiB"), (1 / 1024, "KiB"), (1 / 2**20, "bytes")),
    "KiB": ((1024, "MiB"), (1 / 1024, "bytes")),
    "W": ((1e3, "kW"), (1e-3, "mW")),
}


def unit_hint(field: str, value: float) -> str | None:
    """The unit that `value` looks like, when it lies outside the range of `field`.

    Returns:
        For example `looks like TB/s: write 3350`, or None when no usual unit explains the value.
    """
    spec = FIELDS[field]
    if spec.low is None or spec.high is None or spec.unit is None:
        return None
    middle = math.sqrt(spec.low * spec.high)
    likely = [
        (abs(math.log(value * factor / middle)), unit, value * factor)
        for factor, unit in _OTHER_UNITS.get(spec.unit, ())
        if spec.low <= value * factor <= spec.high
    ]
    if not likely:
        return None
    _, unit, converted = min(likely)
    return f"looks like {unit}: write {converted:.6g}"
