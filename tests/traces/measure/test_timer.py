"""Timing with a clock of our own: what stops sampling, what is flagged, what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest

from predictor.traces.measure.timer import (
    LEAST_SAMPLES,
    MOST_SAMPLES,
    Limits,
    Timing,
    WallClock,
    half_width,
    time_calls,
    timing_of,
    together,
)

LIMITS = Limits(seconds=30.0, warmup_seconds=0.0)


class FakeClock:
    """Says what a function of the sample's number says, and remembers the loops."""

    sample_us = 200.0
    resolution_us = 0.1

    def __init__(self, call_us: Callable[[int], float]) -> None:
        self.call_us, self.loops = call_us, []

    def elapsed_us(self, calls: Sequence[Callable[[], object]]) -> float:
        for call in calls:
            call()
        self.loops.append(len(calls))
        return self.call_us(len(self.loops)) * len(calls)


def test_a_steady_call_takes_the_fewest_samples_and_loops_fill_a_sample():
    clock = FakeClock(lambda i: 2.0)
    timing = time_calls([int], clock, LIMITS)
    assert timing == Timing(
        median_us=2.0, spread_us=0.0, half_width=0.0, samples=LEAST_SAMPLES, calls=100
    )
    assert clock.loops[-LEAST_SAMPLES:] == [100] * LEAST_SAMPLES


def test_a_wandering_call_is_sampled_until_its_median_is_known():
    clock = FakeClock(lambda i: 100.0 + 10.0 * math.sin(i))
    timing = time_calls([int], clock, LIMITS)
    assert LEAST_SAMPLES < timing.samples < MOST_SAMPLES
    assert timing.half_width <= LIMITS.target


def test_samples_end_with_the_time_allowed():
    clock = FakeClock(lambda i: 100.0 if i % 2 else 200.0)
    timing = time_calls([int], clock, Limits(seconds=0.0, warmup_seconds=0.0))
    assert timing.samples == LEAST_SAMPLES
    assert timing.noisy(LIMITS)


def test_operands_take_turns():
    seen: list[int] = []
    calls = [partial(seen.append, i) for i in range(3)]
    time_calls(calls, FakeClock(lambda i: 1e6), LIMITS)
    assert seen == [i % 3 for i in range(len(seen))]


def test_half_width_is_half_of_an_order_statistics_interval():
    samples = np.arange(101.0)  # ranks 40 and 60 enclose the median 50: 50.5 - 0.98 * sqrt(101)
    assert half_width(samples) == pytest.approx((60 - 40) / 2 / 50)


def test_spread_is_the_standard_deviation_of_normal_samples():
    samples = np.random.default_rng(0).normal(100, 3, 20_000)
    assert timing_of(samples, 1).spread_us == pytest.approx(3, rel=0.03)


@pytest.mark.parametrize(
    ("medians", "middle", "apart"),
    [([100.0], 100.0, 0.0), ([100.0, 104.0], 102.0, 2.0), ([100.0, 101.0, 180.0], 100.5, 0.5),
     ([180.0, 100.0, 178.0], 179.0, 1.0), ([100.0, 300.0, 101.0, 200.0, 102.0], 101.0, 1.0)],
)  # fmt: skip
def test_passes_together_are_the_majority_that_agrees(medians, middle, apart):
    passes = [
        Timing(median_us=m, spread_us=0.1, half_width=0.001, samples=7, calls=2) for m in medians
    ]
    timing = together(passes)
    assert timing.median_us == pytest.approx(middle)
    assert timing.half_width == pytest.approx(max(apart / middle, 0.001))
    assert timing.spread_us == pytest.approx(max(apart, 0.1))
    assert (timing.samples, timing.calls) == (7 * len(medians), 2)


def test_a_pass_has_its_part_of_the_time():
    part = Limits(seconds=0.3, warmup_seconds=0.03, passes=3).of_pass()
    assert (part.seconds, part.warmup_seconds) == pytest.approx((0.1, 0.01))


@pytest.mark.parametrize(
    ("median", "spread", "reason"),
    [(10.0, 1.0, ""), (10.0, 6.0, "spread_too_large"), (0.04, 0.0, "below_resolution"),
     (-1.0, 0.0, "below_resolution"), (10.0, math.nan, "spread_too_large")],
)  # fmt: skip
def test_numbers_that_are_not_written(median, spread, reason):
    timing = Timing(median_us=median, spread_us=spread, half_width=0.0, samples=9, calls=1)
    assert timing.untrusted(LIMITS, 0.05) == reason


def test_the_wall_clock_takes_its_loop_off():
    clock = WallClock()
    assert 0 < clock.resolution_us < 100
    empty = np.median([clock.elapsed_us([int] * 1_000) for _ in range(9)]) / 1_000
    assert abs(empty) < 1.0  # microseconds a call: nothing is left of an empty one
