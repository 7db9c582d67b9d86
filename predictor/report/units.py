"""Physical values as people read them."""

from __future__ import annotations

import math

GIB = 1024**3
_TIMES = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))
_COUNTS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def duration(us: float) -> str:
    """Microseconds with four digits and a unit: `512.3 ms`."""
    if not math.isfinite(us):
        return "unknown"
    scale, unit = next(((s, u) for s, u in _TIMES if abs(us) >= s), _TIMES[-1])
    return f"{_digits(us / scale)} {unit}"


def duration_range(lower_us: float, upper_us: float) -> str:
    """Two durations in the unit of the smaller: `811.0 – 1,210 ms`."""
    if not (math.isfinite(lower_us) and math.isfinite(upper_us)):
        return "unknown"
    scale, unit = next(((s, u) for s, u in _TIMES if abs(lower_us) >= s), _TIMES[-1])
    return f"{_digits(lower_us / scale)} – {_digits(upper_us / scale)} {unit}"


def count(value: float, unit: str = "") -> str:
    """A count with a decimal prefix: `774.0 M`, `20.13 TFLOP`."""
    for scale, prefix in _COUNTS:
        if abs(value) >= scale:
            return f"{_digits(value / scale)} {prefix}{unit}"
    return f"{value:.0f} {unit}".rstrip()


def gib(value_bytes: float | None) -> str:
    """Bytes in GiB, MiB where that is clearer, `unknown` for None."""
    if value_bytes is None:
        return "unknown"
    if value_bytes >= GIB / 10:
        return f"{value_bytes / GIB:.2f} GiB"
    return f"{value_bytes / 1024**2:.1f} MiB"


def percent(share: float) -> str:
    """A share in percent: `97.2%`."""
    return f"{100 * share:.1f}%"


def _digits(value: float) -> str:
    """Four significant digits, without an exponent."""
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{min(max(3 - magnitude, 0), 3)}f}"
