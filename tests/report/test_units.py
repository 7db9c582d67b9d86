"""Physical values as text."""

from __future__ import annotations

import pytest

from predictor.report.units import count, duration, duration_range, gib, percent


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0.0, "0.000 µs"),
        (0.5, "0.500 µs"),
        (12.345, "12.35 µs"),
        (999.9, "999.9 µs"),
        (1234.5, "1.234 ms"),
        (512_345.0, "512.3 ms"),
        (2_000_000.0, "2.000 s"),
        (12_345_678_900.0, "12,346 s"),
        (float("nan"), "unknown"),
    ],
)
def test_duration(us: float, text: str) -> None:
    assert duration(us) == text


def test_range_uses_the_unit_of_its_lower_end() -> None:
    assert duration_range(900.0, 1100.0) == "900.0 – 1,100 µs"
    assert duration_range(1000.0, 90_000.0) == "1.000 – 90.00 ms"
    assert duration_range(1.0, float("inf")) == "unknown"


def test_counts_bytes_and_shares() -> None:
    assert count(774_030_080) == "774.0 M"
    assert count(20.134e12, "FLOP") == "20.13 TFLOP"
    assert count(12, "FLOP") == "12 FLOP"
    assert gib(2.5 * 1024**3) == "2.50 GiB"
    assert gib(3 * 1024**2) == "3.0 MiB"
    assert gib(None) == "unknown"
    assert percent(0.972) == "97.2%"
