"""Timing one call: warm-up, inner loops, repeats until the median is known, and what to trust.

A sample is one inner loop of calls. The loop is as long as the clock needs to be read without
showing; its own cost is measured once and taken off. Samples are taken until the 95% interval of
their median is narrow, or the time allowed is used up.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np

Call: TypeAlias = Callable[[], object]

LEAST_SAMPLES = 7
MOST_SAMPLES = 400
MOST_CALLS = 20_000
"""Calls of one inner loop at most."""
SPREAD_TOO_LARGE = "spread_too_large"
"""Why a number is not written that the next measurement may give."""
NORMAL_MAD = 1.4826
"""Standard deviation of normal samples over their median absolute deviation."""


class Clock(Protocol):
    """Times a number of calls on one kind of device."""

    sample_us: float
    """Length of a sample that the clock reads well."""
    resolution_us: float
    """What the clock cannot tell apart."""

    def elapsed_us(self, calls: Sequence[Call]) -> float:
        """Time of all calls, one after the other, until the device has finished them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a measurement is good enough, and when it has had its time."""

    target: float = 0.02
    """Half-width of the median's 95% interval over the median at which sampling stops."""
    noisy: float = 0.05
    """Half-width above which a row is flagged."""
    refused: float = 0.5
    """Spread over the median above which a number is not written."""
    seconds: float = 0.15
    """Sampling time of one call over all passes; `LEAST_SAMPLES` are taken in each in any case."""
    warmup_seconds: float = 0.02
    """Of all passes together."""
    passes: int = 3
    """How often a kernel is visited, with other work between: what disturbs a machine for seconds
    then meets one pass of a kernel and not all of them."""

    def of_pass(self) -> Limits:
        """The limits of one visit."""
        return replace(
            self,
            seconds=self.seconds / self.passes,
            warmup_seconds=self.warmup_seconds / self.passes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What the samples of one call say."""

    median_us: float
    spread_us: float
    """Standard deviation of a sample, from the median absolute deviation."""
    half_width: float
    """Half the 95% interval of the median, over the median."""
    samples: int
    calls: int
    """Calls of each sample."""

    def untrusted(self, limits: Limits, resolution_us: float) -> str:
        """Why the number must not be written; empty when it may."""
        if self.median_us * self.calls <= resolution_us:
            return "below_resolution"
        if not self.spread_us <= limits.refused * self.median_us:
            return SPREAD_TOO_LARGE
        return ""

    def noisy(self, limits: Limits) -> bool:
        """Whether the median is known less well than it should be."""
        return self.half_width > limits.noisy


class WallClock:
    """The wall clock, for devices that compute while the host waits (CPUs)."""

    sample_us = 200.0

    def __init__(self) -> None:
        ticks = [b - a for a, b in _pairs(2_000)]
        self.resolution_us = max(1e-3, float(np.median(ticks)) * 1e-3)
        noop = partial(int)
        loops = [self._raw_us([noop] * 1_000) for _ in range(15)]
        self._call_us = float(np.median(loops)) / 1_000

    def _raw_us(self, calls: Sequence[Call]) -> float:
        start = time.perf_counter_ns()
        for call in calls:
            call()
        return (time.perf_counter_ns() - start) * 1e-3

    def elapsed_us(self, calls: Sequence[Call]) -> float:
        """Wall time of the calls, less what the loop itself takes."""
        return self._raw_us(calls) - self.resolution_us - self._call_us * len(calls)


class CudaClock:
    """CUDA events around the calls: the device's own clock, launches included."""

    sample_us = 1_000.0
    resolution_us = 0.5
    """Published resolution of event times."""

    def __init__(self) -> None:
        import torch

        self._start = torch.cuda.Event(enable_timing=True)
        self._stop = torch.cuda.Event(enable_timing=True)

    def elapsed_us(self, calls: Sequence[Call]) -> float:
        """Time between two events that enclose the calls."""
        import torch

        torch.cuda.synchronize()
        self._start.record()
        for call in calls:
            call()
        self._stop.record()
        self._stop.synchronize()
        return float(self._start.elapsed_time(self._stop)) * 1e3


def time_calls(calls: Sequence[Call], clock: Clock, limits: Limits) -> Timing:
    """Time of one call, from as many samples as the limits ask for.

    Args:
        calls: equal calls, on operands of their own where the cache is to be cold; they are made
            in turn.
        clock: of the device that they run on.
        limits: when to stop.
    """
    collects = gc.isenabled()
    gc.disable()  # a collection in the middle of a sample would be timed
    try:
        return _sampled(_turns(calls), clock, limits)
    finally:
        if collects:
            gc.enable()


def _sampled(turn: Iterator[Call], clock: Clock, limits: Limits) -> Timing:
    """Warm up, then sample until the limits are met.

    Args:
        turn: calls, without end.
        clock: of the device that they run on.
        limits: when to stop.
    """
    once = _warm_up(turn, clock, limits)
    count = min(MOST_CALLS, max(1, math.ceil(clock.sample_us / max(once, 1e-3))))
    samples: list[float] = []
    deadline = time.perf_counter() + limits.seconds
    while len(samples) < MOST_SAMPLES:
        samples.append(clock.elapsed_us([next(turn) for _ in range(count)]) / count)
        if len(samples) < LEAST_SAMPLES:
            continue
        if time.perf_counter() >= deadline or half_width(samples) <= limits.target:
            break
    return timing_of(samples, count)


def timing_of(samples: Sequence[float], calls: int) -> Timing:
    """Median, spread and interval of samples (microseconds a call)."""
    median = float(np.median(samples))
    deviation = float(np.median(np.abs(np.asarray(samples) - median)))
    return Timing(
        median_us=median, spread_us=NORMAL_MAD * deviation, half_width=half_width(samples),
        samples=len(samples), calls=calls,
    )  # fmt: skip


def together(passes: Sequence[Timing]) -> Timing:
    """One timing of several passes: the passes of the majority that lie closest together.

    A disturbance moves a whole pass, mostly up; the shortest interval that holds more than half of
    the medians is without it (half-sample mode, Robertson and Cryer, JASA 69, 1974).

    Args:
        passes: at least one.

    Returns:
        The middle of that interval; the spread inside a pass or between these passes, whichever is
        larger; the interval's half-width likewise; the mean calls of a sample.
    """
    ordered = sorted(passes, key=lambda t: t.median_us)
    most = len(ordered) // 2 + 1
    at = min(
        range(len(ordered) - most + 1),
        key=lambda i: ordered[i + most - 1].median_us - ordered[i].median_us,
    )
    chosen = ordered[at : at + most]
    medians = [t.median_us for t in chosen]
    middle = float(np.median(medians))
    apart = (medians[-1] - medians[0]) / 2
    samples = sum(t.samples for t in passes)
    return Timing(
        median_us=middle,
        spread_us=max(float(np.median([t.spread_us for t in chosen])), apart),
        half_width=max(
            float(np.median([t.half_width for t in chosen])),
            apart / middle if middle > 0 else math.inf,
        ),
        samples=samples,
        calls=round(sum(t.samples * t.calls for t in passes) / samples),
    )


def half_width(samples: Sequence[float]) -> float:
    """Half the 95% interval of the median over the median, by order statistics."""
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    n = len(ordered)
    low = max(0, math.floor(n / 2 - 0.98 * math.sqrt(n)))
    median = float(np.median(ordered))
    return float(ordered[n - 1 - low] - ordered[low]) / 2 / median if median > 0 else math.inf


def _warm_up(turn: Iterator[Call], clock: Clock, limits: Limits) -> float:
    """Time of one call once libraries, caches and clocks have settled."""
    deadline = time.perf_counter() + limits.warmup_seconds
    clock.elapsed_us([next(turn)])
    seen = [clock.elapsed_us([next(turn)]) for _ in range(2)]
    while time.perf_counter() < deadline and len(seen) < 1_000:
        seen.append(clock.elapsed_us([next(turn)]))
    return float(np.median(seen[-15:]))


def _turns(calls: Sequence[Call]) -> Iterator[Call]:
    while True:
        yield from calls


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    for _ in range(count):
        yield time.perf_counter_ns(), time.perf_counter_ns()
