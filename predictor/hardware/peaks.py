"""Datasheet peaks by kind of work and dtype: the compute side of the roofline.

Peaks are dense and per device. Rates that a device sustains stand in `sustained.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from predictor.errors import UnknownRateError, UnsupportedPrecision
from predictor.hardware.device import TELL_TF32, Device, Software

MATRIX_CLASSES = frozenset({"matmul", "conv", "attention", "grouped_matmul", "recurrent"})
"""Op classes that run on matrix units where the device has them for the dtype."""

VECTOR_CLASSES = frozenset(
    {
        "elementwise", "reduction", "softmax", "norm", "gather", "copy", "optimizer",
        "collective", "transfer", "opaque",
    }
)  # fmt: skip
"""Op classes that run on the vector lanes; memory bounds nearly all of them."""

_CUDNN_CLASSES = frozenset({"conv", "recurrent"})
"""Classes that obey `Software.conv_tf32`; the other matrix classes obey `matmul_tf32`."""

_ALIASES: Mapping[str, str] = {"uint8": "int8", "complex64": "fp32", "complex128": "fp64"}
_OTHER_DTYPES = ("int64", "int32", "int16", "bool")

DTYPES: tuple[str, ...] = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")
"""Dtypes that have a peak of their own."""

Clock = Literal["matrix", "boost"]


@dataclass(frozen=True, slots=True)
class _Rate:
    """One way to do the work: its peak, and the clock that the peak is quoted at."""

    tflops: float
    clock: Clock


_MATRIX_FIELDS: Mapping[str, str] = {
    "tf32": "peak_tf32_tflops",
    "fp16": "peak_fp16_tflops",
    "bf16": "peak_bf16_tflops",
    "fp8": "peak_fp8_tflops",
    "int8": "peak_int8_tops",
    "fp4": "peak_fp4_tflops",
}


def peak_tflops(device: Device, *, op_class: str, dtype: str, software: Software) -> float:
    """Dense peak of `device` for this kind of work, in 1e12 FLOP (or integer op) per second.

    Matrix classes take the matrix peak of the dtype. fp32 takes tf32 only where the software
    context allows it (PyTorch: matmul off, cuDNN on) and the device has it, else the fp32 rate.
    fp16 without matrix units takes the fp32 rate, as the framework accumulates in fp32.

    Vector classes take the fp32 lanes whatever the dtype (fp16 where that is faster; fp64 its
    own). A vector rate that the catalogue does not know is `inf`: such work is then bounded by
    bandwidth alone, which stays a true lower bound.

    Args:
        device: One framework device.
        op_class: A class of `MATRIX_CLASSES` or `VECTOR_CLASSES`.
        dtype: Dtype of the arithmetic operands.
        software: Framework and its TF32 switches.

    Raises:
        UnsupportedPrecision: The device has no hardware path for the dtype.
        UnknownRateError: It has one, but its rate is not in the catalogue.
        ValueError: `op_class` is none of the classes.
    """
    return max(rate.tflops for rate in _rates(device, op_class, dtype, software))


def max_clock_peak_tflops(
    device: Device, *, op_class: str, dtype: str, software: Software
) -> float:
    """As `peak_tflops`, at the highest clock the device runs at: no kernel beats this.

    Vendors quote matrix peaks below the boost clock (H100 SXM 1830 of 1980 MHz), and the
    catalogue quotes CPUs at their base clock. Boards may still exceed a nominal boost slightly.
    """
    return max(
        rate.tflops * _clock_headroom(device, rate.clock)
        for rate in _rates(device, op_class, dtype, software)
    )


def arithmetic_dtype(device: Device, *, op_class: str, dtype: str, software: Software) -> str:
    """The dtype whose hardware path the work takes: one of `DTYPES`.

    `tf32` for fp32 matrix work where the software context and the device allow it, `fp32` for
    fp16 without matrix units and for vector work, else the dtype itself.

    Raises:
        UnsupportedPrecision, ValueError: As `peak_tflops`, but an unknown rate is no error.
    """
    wanted = _checked_dtype(dtype)
    if op_class in VECTOR_CLASSES:
        return "fp64" if wanted == "fp64" else "fp32"
    _check_matrix_class(device, op_class, wanted)
    if wanted == "fp32" and _tf32_allowed(device, op_class, software):
        return "tf32"
    _check_path(device, wanted)
    return "fp32" if wanted == "fp16" and "fp16_matrix" in device.unsupported_dtypes else wanted


def mem_bw_gbps(device: Device) -> float:
    """Peak memory bandwidth, 1e9 bytes per second.

    Raises:
        UnknownRateError: The catalogue does not know it.
    """
    if device.memory_bw_gbps is None:
        raise UnknownRateError(
            f"{device.id}: the memory bandwidth is unknown; give memory_bw_gbps in a device file "
            f'with base = "{device.id}" (docs/devices.md)'
        )
    return device.memory_bw_gbps


def has_hardware_path(device: Device, dtype: str) -> bool:
    """Whether matrix work of `dtype` has a hardware path, its rate known or not."""
    lacking = device.unsupported_dtypes
    if dtype in lacking:
        return False
    if dtype == "int8" and "int8_matrix" in lacking:  # DP4A on the vector lanes, where rated
        return device.peak_int8_tops is not None
    return True


def supported_dtypes(device: Device) -> tuple[str, ...]:
    """Dtypes that matrix work can be predicted for on `device`: supported, with a known rate."""
    return tuple(d for d in DTYPES if has_hardware_path(device, d) and _matrix_rates(device, d))


def _rates(device: Device, op_class: str, dtype: str, software: Software) -> list[_Rate]:
    wanted = _checked_dtype(dtype)
    if op_class in VECTOR_CLASSES:
        return _vector_rates(device, wanted)
    _check_matrix_class(device, op_class, wanted)
    if wanted == "fp32" and _tf32_allowed(device, op_class, software):
        return [*_required(device, "tf32"), *_matrix_rates(device, "fp32")]
    rates = _required(device, wanted)
    if wanted == "fp16" and op_class == "conv" and "fp16_matrix" in device.unsupported_dtypes:
        rates = [*rates, *_known(device.peak_fp16_vector_tflops)]  # native half convolutions
    return rates


def _checked_dtype(dtype: str) -> str:
    wanted = _ALIASES.get(dtype, dtype)
    if wanted not in DTYPES and wanted not in _OTHER_DTYPES:
        allowed = ", ".join((*DTYPES, *_ALIASES, *_OTHER_DTYPES))
        raise UnsupportedPrecision(f"unknown dtype {dtype!r}; allowed: {allowed}")
    return wanted


def _check_matrix_class(device: Device, op_class: str, dtype: str) -> None:
    if op_class not in MATRIX_CLASSES:
        raise ValueError(f"unknown op class {op_class!r}")
    if dtype in _OTHER_DTYPES:
        known = ", ".join(supported_dtypes(device)) or "no known dtype"
        raise UnsupportedPrecision(
            f"no device has a rated path for {op_class} in {dtype}; {device.id} knows {known}"
        )


def _tf32_allowed(device: Device, op_class: str, software: Software) -> bool:
    if software.framework in TELL_TF32 or not has_hardware_path(device, "tf32"):
        return False
    if op_class in _CUDNN_CLASSES:  # the switch is cuDNN's: other vendors' libraries stay in fp32
        return software.conv_tf32 and device.vendor == "nvidia"
    # A CPU's switch is another one, and the catalogue rates no CPU in tf32.
    return software.matmul_tf32 and device.kind != "cpu"


def _check_path(device: Device, dtype: str) -> None:
    if not has_hardware_path(device, dtype):
        known = ", ".join(supported_dtypes(device)) or "none"
        raise UnsupportedPrecision(
            f"{device.id} has no hardware path for {dtype} matrix work; "
            f"supported with a known rate: {known}"
        )


def _required(device: Device, dtype: str) -> list[_Rate]:
    _check_path(device, dtype)
    rates = _matrix_rates(device, dtype)
    if not rates:
        known = ", ".join(supported_dtypes(device)) or "none"
        instead = "switch TF32 off" if dtype == "tf32" else "use one of these"
        raise UnknownRateError(
            f"{device.id}: the {dtype} peak is unknown; known: {known}; {instead}, or give the "
            f'peak in a device file with base = "{device.id}" (docs/devices.md)'
        )
    return rates


def _matrix_rates(device: Device, dtype: str) -> list[_Rate]:
    if dtype == "fp64":
        return _known(device.peak_fp64_tflops, device.peak_fp64_matrix_tflops)
    if dtype == "fp32" and device.kind == "tpu":
        return []  # products go through the matrix unit in passes of bf16; the lanes have no part
    if dtype == "fp32" or (dtype == "fp16" and "fp16_matrix" in device.unsupported_dtypes):
        return _known(device.peak_fp32_tflops, device.peak_fp32_matrix_tflops)
    value: float | None = getattr(device, _MATRIX_FIELDS[dtype])
    return [] if value is None else [_Rate(value, "matrix")]


def _vector_rates(device: Device, dtype: str) -> list[_Rate]:
    if dtype == "fp64":
        if "fp64" in device.unsupported_dtypes:
            raise UnsupportedPrecision(f"{device.id} has no hardware path for fp64")
        rates = _known(device.peak_fp64_tflops)
    elif dtype == "fp16" and device.peak_fp32_tflops is not None:
        rates = _known(device.peak_fp32_tflops, device.peak_fp16_vector_tflops)
    else:
        rates = _known(device.peak_fp32_tflops)
    return rates or [_Rate(math.inf, "boost")]


def _known(*values: float | None) -> list[_Rate]:
    return [_Rate(value, "boost") for value in values if value is not None]


def _clock_headroom(device: Device, clock: Clock) -> float:
    quoted = device.clock_matrix_mhz if clock == "matrix" else device.clock_boost_mhz
    if clock == "boost" and device.kind == "cpu":
        quoted = device.clock_base_mhz
    if quoted is None or device.clock_boost_mhz is None:
        return 1.0
    return max(1.0, device.clock_boost_mhz / quoted)
