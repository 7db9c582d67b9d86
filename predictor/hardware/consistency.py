"""Facts of one device that contradict each other: what a range check alone lets through."""

from __future__ import annotations

from predictor.hardware.device import Device
from predictor.hardware.fields import FIELDS

MOST_FLOP_PER_BYTE = 4000
"""Above any ridge point on the market (GB300 fp4: 1875): a peak given in GFLOPS lands above."""

LEAST_FLOP_PER_BYTE = 1.0
"""Below any ridge point of the dtypes checked: a peak given in PFLOPS lands below."""

_RIDGE_FIELDS = (
    "peak_fp32_tflops", "peak_fp32_matrix_tflops", "peak_tf32_tflops", "peak_fp16_tflops",
    "peak_bf16_tflops", "peak_fp8_tflops", "peak_int8_tops", "peak_fp4_tflops",
)  # fmt: skip

_VECTOR_PEAKS = (
    "peak_fp64_tflops", "peak_fp64_matrix_tflops", "peak_fp32_tflops", "peak_fp32_matrix_tflops",
    "peak_fp16_vector_tflops",
)  # fmt: skip
_MATRIX_PEAKS = (
    "peak_tf32_tflops", "peak_fp16_tflops", "peak_bf16_tflops", "peak_fp8_tflops",
    "peak_int8_tops", "peak_fp4_tflops", "peak_fp16_fp16acc_tflops",
)  # fmt: skip

_PEAKS_OF_TOKEN = {
    "fp64": ("peak_fp64_tflops", "peak_fp64_matrix_tflops"),
    "tf32": ("peak_tf32_tflops",),
    "fp16": ("peak_fp16_tflops",),
    "fp16_matrix": ("peak_fp16_tflops", "peak_fp16_fp16acc_tflops"),
    "bf16": ("peak_bf16_tflops",),
    "fp8": ("peak_fp8_tflops",),
    "int8": ("peak_int8_tops",),
    "int8_matrix": (),  # DP4A on the vector lanes has a peak
    "fp4": ("peak_fp4_tflops",),
}


def implied_fp32_tflops(device: Device) -> float | None:
    """Units x FLOP a clock x clock, where all three are known (CPUs: base clock)."""
    clock_mhz = device.clock_base_mhz if device.kind == "cpu" else device.clock_boost_mhz
    if device.units is None or device.fp32_flop_per_clk_unit is None or clock_mhz is None:
        return None
    return device.units * device.fp32_flop_per_clk_unit * clock_mhz * 1e-6


def implied_matrix16_tflops(device: Device) -> float | None:
    """Units x 16-bit matrix FLOP a clock x the clock that the peak implies."""
    rate, clock_mhz = device.matrix16_flop_per_clk_unit, device.clock_matrix_mhz
    if device.units is None or rate is None or clock_mhz is None:
        return None
    return device.units * rate * clock_mhz * 1e-6


def contradictions(device: Device, *, given: frozenset[str], inherited: bool) -> list[str]:
    """What cannot be true together.

    Args:
        device: All facts, inherited ones included.
        given: Fields that the file itself sets.
        inherited: Whether the other facts come from a catalogue row.

    Returns:
        One sentence a contradiction, with the remedy; empty when there is none.
    """
    return [
        *_ridge_points(device, given),
        *_peaks_and_units(device, given, inherited=inherited),
        *_unsupported_peaks(device),
        *_orders(device, given),
    ]


def _ridge_points(device: Device, given: frozenset[str]) -> list[str]:
    if device.memory_bw_gbps is None or not given & {"memory_bw_gbps", *_RIDGE_FIELDS}:
        return []
    found = []
    for name in _RIDGE_FIELDS:
        peak: float | None = getattr(device, name)
        if peak is None:
            continue
        ridge = peak * 1e3 / device.memory_bw_gbps
        smaller = "GFLOPS" if ridge > MOST_FLOP_PER_BYTE else "PFLOPS"
        if not LEAST_FLOP_PER_BYTE <= ridge <= MOST_FLOP_PER_BYTE:
            found.append(
                f"{name} = {peak:g} with memory_bw_gbps = {device.memory_bw_gbps:g} makes "
                f"{ridge:.3g} FLOP/byte, outside {LEAST_FLOP_PER_BYTE:g} to {MOST_FLOP_PER_BYTE}: "
                f"is the peak in {smaller} ({FIELDS[name].unit} wanted) or the bandwidth not in "
                "GB/s?"
            )
    return found


def _peaks_and_units(device: Device, given: frozenset[str], *, inherited: bool) -> list[str]:
    clock = "clock_base_mhz" if device.kind == "cpu" else "clock_boost_mhz"
    vector_inputs = ("units", "fp32_flop_per_clk_unit", clock)
    matrix_inputs = ("units", "matrix16_flop_per_clk_unit", "clock_matrix_mhz")
    fp32, sixteen = "peak_fp32_tflops", _faster_16bit(device)
    families = (
        (fp32, implied_fp32_tflops(device), vector_inputs, _VECTOR_PEAKS),
        (sixteen, implied_matrix16_tflops(device), matrix_inputs, _MATRIX_PEAKS),
    )
    found = []
    for anchor, implied, inputs, members in families:
        peak: float | None = getattr(device, anchor)
        ratio = None if peak is None or implied is None else peak / implied
        left = [name for name in members if _known(device, name) and name not in given]
        unchanged = anchor not in given and ratio is not None and 0.98 <= ratio <= 1.02
        changed = [name for name in inputs if name in given]
        if inherited and changed and left and not unchanged:
            found.append(
                f"{', '.join(changed)} changed, but {', '.join(left)} still come from base: give "
                "the peaks of this device, or list these fields in unknown"
            )
        elif ratio is not None and not 0.4 <= ratio <= 2.5:
            found.append(
                f"{anchor} = {peak:g}, but {' x '.join(inputs)} makes {implied:.4g} TFLOPS: give "
                "the peak that belongs to these units and clocks"
            )
    return found


def _known(device: Device, name: str) -> bool:
    return getattr(device, name) is not None


def _faster_16bit(device: Device) -> str:
    """The field behind the 16-bit rate: MI100 runs bf16, Gaudi3 fp16 at a lower rate."""
    fp16, bf16 = device.peak_fp16_tflops or 0.0, device.peak_bf16_tflops or 0.0
    return "peak_bf16_tflops" if bf16 > fp16 else "peak_fp16_tflops"


def _orders(device: Device, given: frozenset[str]) -> list[str]:
    """Facts of which one is never above the other, on any device of the catalogue."""
    found = []
    for small, large in _NEVER_ABOVE:
        low, high = getattr(device, small), getattr(device, large)
        if low is not None and high is not None and low > high and given & {small, large}:
            found.append(
                f"{small} = {low:g} is above {large} = {high:g}: they may be swapped, or one of "
                "them in another unit"
            )
    return found


_NEVER_ABOVE = (
    ("memory_reported_gib", "memory_gib"), ("clock_base_mhz", "clock_boost_mhz"),
    ("peak_fp32_tflops", "peak_fp16_tflops"), ("peak_fp32_tflops", "peak_bf16_tflops"),
)  # fmt: skip


def _unsupported_peaks(device: Device) -> list[str]:
    return [
        f"{name} has a value, but unsupported_dtypes lists {token}: give unsupported_dtypes "
        f"without {token}, or leave the peak out"
        for token in device.unsupported_dtypes
        for name in _PEAKS_OF_TOKEN[token]
        if getattr(device, name) is not None
    ]
